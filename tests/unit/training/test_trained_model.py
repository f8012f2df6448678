"""The network of a finished run: loaded, used for predictions, exported."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from support.processes import Done, run_python
from torch import nn

from fedsys import load_model
from fedsys.cli.models import main as use_model
from fedsys.core.errors import InputError

EXAMPLE = Path(__file__).parents[3] / "examples" / "hospitals"


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the hospital example after its commands, with a run called `run`."""
    folder = tmp_path_factory.mktemp("hospitals")
    assert run_python(folder, str(EXAMPLE / "prepare.py")).returncode == 0
    command = ["--config-dir", str(EXAMPLE), "experiment=hospitals", "run.name=run", "rounds=20"]
    done = run_python(folder, "-m", "fedsys", *command)
    assert done.returncode == 0, done.stderr
    tables = sorted((folder / "hospitals").glob("*/test.csv"))
    lines = [table.read_text().splitlines(keepends=True) for table in tables]
    (folder / "all.csv").write_text(
        "".join(lines[0] + [row for one in lines[1:] for row in one[1:]])
    )
    return folder


@pytest.fixture
def command(
    hospitals: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """`fedsys predict ...` and `fedsys export ...` in the folder of the example."""
    monkeypatch.chdir(hospitals)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str) -> Done:
        capfd.readouterr()
        return Done(use_model(arguments), *capfd.readouterr())

    return run


def test_predictions_have_the_auc_that_the_run_reported(hospitals: Path) -> None:
    done = run_python(
        hospitals, "-m", "fedsys", "predict", "runs/run", "all.csv", "-o", "scores.csv"
    )
    assert (done.returncode, done.stderr) == (0, "")
    with (hospitals / "all.csv").open() as truth, (hospitals / "scores.csv").open() as scores:
        labels = [row["diagnosis"] == "malignant" for row in csv.DictReader(truth)]
        found = [float(row["score_malignant"]) for row in csv.DictReader(scores)]
    final = json.loads((hospitals / "runs/run/summary.json").read_text())["final"]
    assert roc_auc_score(labels, found) == pytest.approx(final["test_auc"], abs=1e-6)
    start = 0
    for client, reported in enumerate(final["test_auc_clients"]):
        rows = (hospitals / f"hospitals/hospital-{client}/test.csv").read_text().splitlines()
        mine = slice(start, start := start + len(rows) - 1)
        assert roc_auc_score(labels[mine], found[mine]) == pytest.approx(reported, abs=1e-6)
    assert start == len(found)


def test_a_loaded_model_is_in_evaluation_mode_and_has_the_trained_weights(hospitals: Path) -> None:
    model = load_model(hospitals / "runs/run")
    assert not model.training
    assert model.classes == ["benign", "malignant"]
    variables = load_file(hospitals / "runs/run/final.safetensors")
    for name, value in model.net.state_dict().items():
        assert torch.equal(value, variables[f"net.{name}"])


@pytest.mark.parametrize(("kind", "file"), [("torch", "model.pt2"), ("onnx", "model.onnx")])
def test_an_export_agrees_with_the_module_and_has_a_card(
    command: Callable[..., Done], hospitals: Path, kind: str, file: str
) -> None:
    done = command("export", "runs/run", "--format", kind, "-o", kind)
    assert done.returncode == 0, done.stderr
    inputs = torch.randn(7, 30, generator=torch.Generator().manual_seed(1))
    expected = load_model(hospitals / "runs/run")(inputs).detach()
    if kind == "torch":
        found = torch.export.load(hospitals / kind / file).module()(inputs).detach()
    else:
        session = onnxruntime.InferenceSession(hospitals / kind / file)
        found = torch.from_numpy(np.asarray(session.run(None, {"inputs": inputs.numpy()})[0]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    card = (hospitals / kind / "README.md").read_text()
    for part in ("benign, malignant", "140, 105, 70, 35", "test_auc", "licence", "AdaFGDA"):
        assert part in card
    assert "hospital-{client}" not in card


WRONG = {
    "no such run": (["predict", "runs/none", "all.csv"], "is not a run directory"),
    "no data": (["predict", "runs/run", "none.csv"], "none.csv is missing"),
    "a column is missing": (
        ["predict", "runs/run", "short.csv"],
        "column 'mean_radius' is missing",
    ),
    "text": (["predict", "runs/run", "text.csv"], "'mean_radius' is text, and must be numbers"),
    "another network": (
        ["predict", "runs/run", "all.csv", "--model", "own_net.make"],
        "the variables do not fit the model Linear",
    ),
    "no such network": (["predict", "runs/run", "all.csv", "--model", "a.b"], "cannot be imported"),
    "damaged": (["predict", "runs/damaged", "all.csv"], "model.json is damaged"),
    "foreign code": (["predict", "runs/foreign", "all.csv"], "which is not one of fedsys"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_what_cannot_be_used_is_named_in_one_line(
    command: Callable[..., Done], hospitals: Path, name: str
) -> None:
    text = (hospitals / "all.csv").read_text()
    (hospitals / "short.csv").write_text(text.replace("mean_radius", "radius", 1))
    (hospitals / "text.csv").write_text(text.replace("\n", "\nlarge", 1))
    (hospitals / "own_net.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Linear(30, 1)\n"
    )
    for copy, change in (("damaged", "{"), ("foreign", None)):
        folder = hospitals / "runs" / copy
        folder.mkdir(exist_ok=True)
        for file in ("final.safetensors", "model.json"):
            (folder / file).write_bytes((hospitals / "runs/run" / file).read_bytes())
        note = json.loads((hospitals / "runs/run/model.json").read_text())
        note["model"] = {"_target_": "os.system", "command": "touch hacked"}
        (folder / "model.json").write_text(change or json.dumps(note))
    arguments, message = WRONG[name]
    done = command(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (hospitals / "hacked").exists()


def test_images_are_prepared_as_in_training(
    command: Callable[..., Done], fedsys: Callable[..., Done], tmp_path: Path
) -> None:
    stream = np.random.default_rng(0)
    for name in ("dark", "light"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(10):
            pixels = stream.integers(0, 128, (8, 8)) + (127 if name == "light" else 0)
            image = Image.fromarray(pixels.astype(np.uint8))
            image.save(tmp_path / "images" / name / f"{number}.png")
    options = ["dataset=images", "dataset.path=images", "dataset.size=8", "dataset.channels=1"]
    run = [*options, "problem=classification", "algorithm=fedavg", "rounds=30", "clients=2"]
    done = fedsys(*run, "run.name=run", "model.hidden=[8]")
    assert done.returncode == 0, done.stderr
    done = command("predict", "runs/run", "images")
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) == 20
    right = [float(row[f"score_{row['sample'].split('/')[0]}"]) > 0.5 for row in rows]
    assert sum(right) >= 19


def test_a_model_of_ones_own_is_given(hospitals: Path) -> None:
    net = nn.Sequential(
        nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    loaded = load_model(hospitals / "runs/run", model=net)
    assert loaded.net is net
    with pytest.raises(InputError, match="do not fit the model Linear"):
        load_model(hospitals / "runs/run", model=lambda: nn.Linear(30, 2))


def test_the_script_of_the_example_has_at_most_20_lines_and_runs(
    hospitals: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXAMPLE / "train.py").read_text()
    code = [line for line in text.splitlines() if line.strip() and not line.startswith('"""')]
    assert len(code) <= 20
    monkeypatch.chdir(hospitals)
    exec(compile(text.replace("rounds=60", "rounds=1"), "train.py", "exec"), {})
    assert capsys.readouterr().out.startswith("test AUC 0.")
