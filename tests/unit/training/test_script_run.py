"""Runs of a script in a run directory: written, killed, resumed, refused and shown."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import sleep
from typing import Any
from unittest.mock import patch

import matplotlib
import pytest
import torch
import yaml
from safetensors.torch import load_file
from support.processes import Ranks, forks

import fedsys
from fedsys.algorithms import LSGD, AdaFGDA, LocalSGDA
from fedsys.communication import AllReduce
from fedsys.core.errors import FedsysError, InputError
from fedsys.data import Digits
from fedsys.models import MLP
from fedsys.problems import BilinearGame, DeepAUC, MinimisationProblem, QuadraticGame, TwoPoints
from fedsys.report.main import report
from fedsys.training import curves

GAME = QuadraticGame(dim=3, samples=6, batch_size=2, noise=0.1)
SGDA = LocalSGDA(lr_x=0.05, lr_y=0.05, local_steps=3)


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out curves.png, which takes longer than all else in these runs."""
    monkeypatch.setattr(curves, "plot", lambda *given: None)


def run(folder: Path | None, **changed: Any) -> fedsys.Result:
    given = {"problem": GAME, "algorithm": SGDA, "rounds": 10, "clients": 3, "checkpoint_every": 2}
    return fedsys.run(**{**given, "run_dir": folder, **changed})


def numbers(records: list[dict[str, float]]) -> list[dict[str, float]]:
    """The records without what clocks measure."""
    clocks = ("seconds", "seconds_waited")
    return [{n: v for n, v in record.items() if n not in clocks} for record in records]


def written(folder: Path) -> list[dict[str, float]]:
    """The records of a metrics.jsonl, without what clocks measure."""
    return numbers([json.loads(line) for line in (folder / "metrics.jsonl").open()])


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def assert_same_result(a: fedsys.Result, b: fedsys.Result) -> None:
    assert numbers(a.records) == numbers(b.records)
    assert a.variables.keys() == b.variables.keys()
    assert all(torch.equal(a.variables[name], b.variables[name]) for name in a.variables)
    states = a.state.tensors(), b.state.tensors()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


# Kills and restarts.


def _script(folder: str, says: Connection | None) -> None:
    """Run slowly, and say when step 30 is reached."""

    def on_step(step: int, state: Any) -> None:
        sleep(0.01)
        if step == 30 and says is not None:
            says.send("at step 30")

    with patch.object(curves, "plot"):
        run(Path(folder), rounds=20, on_step=on_step)


def test_a_killed_script_that_is_started_again_ends_bit_identically(tmp_path: Path) -> None:
    here, there = forks().Pipe()
    started = forks().Process(target=_script, args=(str(tmp_path / "parts"), there))
    started.start()
    assert here.recv() == "at step 30"
    assert started.pid is not None
    os.kill(started.pid, signal.SIGKILL)
    started.join()
    assert started.exitcode == -signal.SIGKILL
    assert any((tmp_path / "parts/checkpoints").glob("step-*"))
    assert not (tmp_path / "parts/summary.json").exists()
    again = forks().Process(target=_script, args=(str(tmp_path / "parts"), None))
    again.start()
    again.join()
    assert again.exitcode == 0
    run(tmp_path / "whole", rounds=20)
    whole, parts = (load_file(tmp_path / f"{n}/final.safetensors") for n in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert written(tmp_path / "whole") == written(tmp_path / "parts")


def _two_ranks(folder: str | None, kill_at: int | None) -> Any:
    def on_step(step: int, state: Any) -> None:
        if step == kill_at and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    # Folders of other ranks are ignored: all write to that of the first one.
    path = folder if folder is None or os.environ["RANK"] == "0" else f"{folder}-of-no-one"
    with patch.object(curves, "plot"):
        given = None if path is None else Path(path)
        found = run(given, on_step=on_step, communicator=AllReduce(5))
    return numbers(found.records), [v.tolist() for v in found.variables.values()]


def test_several_ranks_resume_together_and_all_have_the_records(
    ranks: Ranks, tmp_path: Path
) -> None:
    whole = ranks(2, _two_ranks, None, None)
    killed = ranks.attempt(2, _two_ranks, str(tmp_path / "run"), 20)
    assert all(trace for _, trace in killed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert any((tmp_path / "run/checkpoints").glob("step-*"))
    assert ranks(2, _two_ranks, str(tmp_path / "run"), None) == whole
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["ranks"] == len(summary["seconds_waited_by_rank"]) == 2
    finished = ranks(2, _two_ranks, str(tmp_path / "run"), None)
    assert finished == whole


def test_a_run_that_is_interrupted_in_a_notebook_continues_in_the_same_process(
    tmp_path: Path,
) -> None:
    def stop(step: int, state: Any) -> None:
        if step == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", on_step=stop)
    steps: list[int] = []
    resumed = run(tmp_path / "run", on_step=lambda step, state: steps.append(step))
    assert steps[0] == 19  # the last checkpoint is of step 18
    assert_same_result(resumed, run(None))


def test_a_longer_run_continues_a_finished_one(tmp_path: Path) -> None:
    run(tmp_path / "run", rounds=4)
    assert_same_result(run(tmp_path / "run"), run(None))
    assert written(tmp_path / "run") == numbers(run(None).records)


def test_a_finished_run_is_read_and_nothing_is_written(tmp_path: Path) -> None:
    first = run(tmp_path / "run")
    before = files_of(tmp_path / "run")
    seen: list[Any] = []
    again = run(tmp_path / "run", on_record=seen.append, on_step=lambda *_: seen.append(_))
    assert_same_result(again, first)
    assert again.records == first.records
    assert seen == []
    assert files_of(tmp_path / "run") == before


def test_a_finished_run_without_checkpoints_is_run_again(tmp_path: Path) -> None:
    first = run(tmp_path / "run")
    for path in (tmp_path / "run/checkpoints").rglob("*.*"):
        path.unlink()
    for path in (tmp_path / "run/checkpoints").iterdir():
        path.rmdir()
    with pytest.warns(RuntimeWarning, match="no checkpoint; the run starts from step 0 again"):
        again = run(tmp_path / "run")
    assert_same_result(again, first)


# Other settings.


def one_loss(x: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    return (x - data).square().sum()


def another_loss(x: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    return (x - data).abs().sum()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"algorithm": replace(SGDA, lr_x=0.1)}, "algorithm.lr_x=0.05, now 0.1;"),
        ({"problem": replace(GAME, noise=0.2)}, "problem.noise=0.1, now 0.2;"),
        ({"problem": BilinearGame()}, "problem._target_=fedsys.problems.QuadraticGame, now fedsys"),
        ({"seed": 1}, "seed=0, now 1;"),
        ({"clients": 2}, "clients=3, now 2;"),
        ({"dtype": "float64"}, "dtype=float32, now float64;"),
        ({"communicator": AllReduce(weights="size")}, "communicator.weights=uniform, now size"),
        ({"draws": lambda client, step, k: [0, 1]}, "draws=None, now test_script_run"),
    ],
)
def test_a_directory_of_a_run_with_other_settings_is_refused_by_their_names(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    run(tmp_path / "run", rounds=2)
    before = files_of(tmp_path / "run")
    with pytest.raises(InputError) as error:
        run(tmp_path / "run", **changed)
    assert named in error.value.message
    assert error.value.message.startswith(f"{tmp_path / 'run'} was run with ")
    advice = "choose another run_dir, or give the settings it was started with"
    assert error.value.message.endswith(advice)
    assert "\n" not in error.value.message
    assert files_of(tmp_path / "run") == before


def test_functions_and_data_of_another_run_are_refused(tmp_path: Path) -> None:
    data = [torch.ones(2), torch.zeros(2)]
    loss = MinimisationProblem(one_loss, torch.zeros(2), client_data=data)
    given: dict[str, Any] = {"algorithm": fedsys.FedAvg(lr=0.1), "clients": 2, "rounds": 2}
    run(tmp_path / "run", problem=loss, **given)
    run(tmp_path / "run", problem=replace(loss, client_data=[*data]), **given)
    for changed, named in (
        (MinimisationProblem(another_loss, torch.zeros(2), client_data=data), "another_loss"),
        (replace(loss, client_data=[torch.ones(2), torch.ones(2)]), "problem.client_data="),
    ):
        with pytest.raises(InputError, match=named):
            run(tmp_path / "run", problem=changed, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"resume": True, "run_dir": None}, "resume=True needs run_dir="),
        ({"checkpoint_every": -1}, "run: checkpoint_every must be 0 or more rounds, got -1"),
        ({"checkpoint_every": 1.5}, "run: checkpoint_every must be a whole number, got 1.5"),
        ({"run_dir": ""}, "run: run_dir must be the path of a folder, got ''"),
        ({"run_dir": 3}, "run: run_dir must be"),
        ({"progress": "yes"}, "run: progress must be true or false, got 'yes'"),
        ({"resume": "auto"}, "run: resume must be true or false or null, got 'auto'"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        run(tmp_path / "run", **given)
    assert error.value.message.startswith(message)
    assert not (tmp_path / "run").exists()


def test_resume_false_refuses_a_directory_with_a_run(tmp_path: Path) -> None:
    run(tmp_path / "run", resume=False)
    with pytest.raises(InputError, match="another run_dir, or resume=True to continue it"):
        run(tmp_path / "run", resume=False)


def test_a_mistake_before_the_first_record_leaves_nothing(tmp_path: Path) -> None:
    def broken(step: int, state: Any) -> None:
        raise TypeError("of the user")

    problem = MinimisationProblem(lambda x, m: x.sum() + len(m), torch.zeros(2))
    with pytest.raises((TypeError, FedsysError)):
        run(tmp_path / "run", problem=problem, algorithm=fedsys.FedAvg(lr=0.1))
    assert not (tmp_path / "run").exists()
    with pytest.raises(TypeError, match="of the user"):
        run(tmp_path / "run", on_step=broken)
    run(tmp_path / "run")


# What is written and shown.


def test_config_yaml_describes_the_run(tmp_path: Path) -> None:
    dataset = Digits()
    problem = DeepAUC(dataset=dataset, model=MLP(hidden=(4,)))
    fedsys.run(problem, AdaFGDA(), rounds=1, clients=2, run_dir=tmp_path / "run")
    found = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert found["problem"]["_target_"] == "fedsys.problems.DeepAUC"
    assert found["problem"]["model"] == {"_target_": "fedsys.models.MLP", "hidden": [4]}
    assert found["problem"]["dataset"]["_target_"] == "fedsys.data.Digits"
    assert found["algorithm"]["_target_"] == "fedsys.algorithms.AdaFGDA"
    assert found["communicator"]["_target_"] == "fedsys.communication.AdaptiveMatrix"
    settings = {name: found[name] for name in ("clients", "rounds", "steps", "seed", "dtype")}
    assert settings == {"clients": 2, "rounds": 1, "steps": None, "seed": 0, "dtype": "float32"}
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"metrics.jsonl", "summary.json", "final.safetensors"} <= names
    assert {"checkpoints", "partition.npz", "partition.png"} <= names
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    choices = {"algorithm": "AdaFGDA", "problem": "DeepAUC", "communicator": "AdaptiveMatrix"}
    assert summary["choices"] == choices


def test_a_report_reads_the_runs_of_scripts(tmp_path: Path) -> None:
    for lr in (0.05, 0.1):
        for seed in (0, 1):
            folder = tmp_path / f"{lr}-{seed}"
            run(folder, algorithm=replace(SGDA, lr_x=lr), seed=seed, rounds=2)
    page = report([tmp_path], tmp_path / "report", figures=False)[0].read_text()
    assert "LocalSGDA, lr_x=0.05" in page
    assert "LocalSGDA, lr_x=0.1" in page


def test_progress_shows_what_the_command_line_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"problem": TwoPoints(delta=4.0), "algorithm": LSGD(lr=0.1)}
    given["clients"] = 2
    run(None, **given)
    assert capsys.readouterr().out == ""
    run(None, **given, progress=True)
    lines = capsys.readouterr().out.splitlines()
    title = "LSGD on TwoPoints: 2 clients in one process, cpu, 1 thread each"
    assert lines[0] == title
    assert lines[1].startswith("round 0/10  relative_error 1  sent 0 B per client")
    assert lines[2].startswith("round 10/10  relative_error ")
    run(tmp_path / "run", **given, progress=True)
    assert f"results: {tmp_path / 'run'}" in capsys.readouterr().out.splitlines()
    run(tmp_path / "run", **given, progress=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == title
    assert "this run is finished (step 200, round 10)" in lines[1]
    assert "another run_dir starts a new run" in lines[1]


def test_a_run_directory_changes_no_number_and_no_backend_of_pyplot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the figures

    def refuse(*given: Any, **options: Any) -> None:
        raise AssertionError("the backend belongs to the user")

    monkeypatch.setattr(matplotlib, "use", refuse)
    problem = DeepAUC(dataset=Digits(), model=MLP(hidden=(4,)))
    given: dict[str, Any] = {"problem": problem, "algorithm": AdaFGDA(), "rounds": 1}
    assert_same_result(run(tmp_path / "run", **given), run(None, **given))
    assert {"curves.png", "partition.png"} <= {p.name for p in (tmp_path / "run").iterdir()}
