"""Reports: mean and band of seeds, what differs, the best, and broken runs that are named."""

from __future__ import annotations

import json
import re
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.processes import command
from support.run_folders import write_run

from fedsys.report.configurations import best, configurations, spread
from fedsys.report.main import main
from fedsys.report.runs import read_runs
from fedsys.training.console import UNCOMPRESSED
from fedsys.training.file_names import file_stems, slug


def data_of(page: Path) -> Any:
    """The numbers inside a page."""
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), flags=re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two seeds of a, one of b at another step."""
    folder = tmp_path / "sweep"
    split = ([0, 0, 1, 1, -1], [3, 7, 7, 7, 3])
    write_run(
        folder / "0", "A", 0, {"test_auc": [0.5, 0.7], "drift": [1, 1e-3]}, client_split=split
    )
    write_run(folder / "1", "A", 1, {"test_auc": [0.5, 0.9], "drift": [1, 1e-5]}, waits=(1.0, 2.0))
    write_run(folder / "2", "B", 0, {"test_auc": [0.5, 0.6], "drift": [1, 1e-2]}, lr=0.3)
    return folder


def test_seeds_are_one_curve_with_a_band_of_one_deviation_inside_their_range(sweep: Path) -> None:
    a, b = configurations(read_runs([sweep])[0])
    assert [c.label for c in (a, b)] == ["a", "b"]
    start, end = a.curve("test_auc", "bytes_up")
    assert (start.x, start.mean, start.low, start.high, start.seeds) == (0, 0.5, 0.5, 0.5, 2)
    # The deviation of 0.7 and 0.9 is 0.141, more than they are from their mean.
    assert (end.x, end.seeds) == (500, 2)
    assert (end.mean, end.low, end.high) == pytest.approx((0.8, 0.7, 0.9))
    # On a logarithmic axis a band that reached below zero would have no lower side.
    assert a.curve("drift", "round")[-1].low == pytest.approx(1e-5)


def test_the_best_is_the_largest_auc_and_the_smallest_loss(sweep: Path) -> None:
    configured = configurations(read_runs([sweep])[0])
    for metric, label in (("test_auc", "a"), ("drift", "a")):
        chosen = best(configured, metric)
        assert chosen is not None
        assert chosen.label == label
    assert best(configured, "gap") is None


def test_a_multirun_folder_becomes_a_page_and_figures(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(sweep)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "* test_auc 0.8 ± 0.14  a" in printed.out
    out = sweep / "report"
    stems = ("test_auc", "drift", "waits")
    assert {path.name for path in out.iterdir()} == {
        *(f"{stem}.{form}" for stem in stems for form in ("png", "svg")),
        "partition.png",
        "report.html",
    }
    assert all(path.stat().st_size > 1000 for path in out.iterdir())
    data = data_of(out / "report.html")
    assert [c["best"] for c in data["configurations"]] == [True, False]
    assert data["finals"]["rows"][0]["cells"][:2] == ["a", "0.8 ± 0.14"]
    differing = {row["cells"][0]: row["cells"][1:] for row in data["differences"]["rows"]}
    assert differing["algorithm.lr"] == ["0.1", "0.3"]
    assert "seed" not in differing
    (split,) = data["partitions"]
    assert (split["classes"], split["counts"]) == (["3", "7"], [[1, 1], [0, 2]])
    assert data["waits"] == [{"label": "a, seed 1", "seconds": [1.0, 2.0]}]
    addresses = set(re.findall(r"https?://[^\s\"']+", (out / "report.html").read_text()))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of a language, not a place"


def test_broken_runs_are_named_and_the_others_are_shown(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = write_run(sweep / "3", "C", 0, {"test_auc": [0.5, 0.65, 0.7]}, ended=False)
    text = (cut / "metrics.jsonl").read_text()
    (cut / "metrics.jsonl").write_text(text[:-9])
    other = write_run(sweep / "4", "D", 0, {"gap": [1.0, float("nan"), 0.1]})
    (sweep / "5").mkdir()
    (sweep / "5" / "config.yaml").write_text("algorithm: {lr: 1}\n")
    garbled = write_run(sweep / "6", "E", 0, {"test_auc": [0.5, 0.55]})
    (garbled / "config.yaml").write_text("algorithm: [\n")
    (garbled / "summary.json").write_text('{"final": ')
    assert main([str(sweep), "--page-only"]) == 0
    said = capsys.readouterr().err.splitlines()
    expected = [
        f"{cut / 'metrics.jsonl'}: line 3 cannot be read",
        f"{cut}: no summary.json, the run is unfinished; shown to round 5",
        f"{sweep / '5'}: no metrics",
        f"{garbled / 'config.yaml'} cannot be read",
        f"{garbled / 'summary.json'} cannot be read",
        "d reports no test_auc",
    ]
    for message in expected:
        assert sum(message in line for line in said) == 1, (message, said)
    data = data_of(sweep / "report" / "report.html")
    labels = {c["label"]: c["curves"] for c in data["configurations"]}
    assert set(labels) == {"a", "b", "C", "d", "6"}
    assert len(labels["C"]["test_auc"]) == 2
    assert [row[4] for row in labels["d"]["gap"]] == [1.0, None, 0.1]
    assert other.name == "4"
    assert len(data["warnings"]) == len(said)


def test_seeds_that_grow_beyond_all_numbers_are_shown_as_far_as_they_can_be(tmp_path: Path) -> None:
    for seed, end in enumerate((inf, nan, 1e300)):
        write_run(tmp_path / f"a{seed}", "a", seed, {"gap": [1.0, 1e250, end]})
    write_run(tmp_path / "b", "b", 0, {"gap": [1.0, 0.5, 0.1]})
    assert main([str(tmp_path), "--out", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page" / "gap.png").stat().st_size > 1000
    (grown, _) = configurations(read_runs([tmp_path])[0])
    assert [(p.low, p.high) for p in grown.curve("gap", "round")][:2] == [
        (1.0, 1.0),
        (1e250, 1e250),
    ]
    assert spread([1.0, inf]) == "inf ± nan"


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (False, [], "is not a folder"),
        (True, [], "nothing to report"),
        (True, ["--metric", "auc"], "nothing to report"),
    ],
)
def test_nothing_to_report_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: bool,
    arguments: list[str],
    message: str,
) -> None:
    folder = tmp_path / "empty"
    if make:
        folder.mkdir()
    assert main([str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "report").exists()


def test_an_unknown_metric_is_refused_with_the_known_ones(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(sweep), "--metric", "auc"]) == 2
    assert "no run reports 'auc'; there are test_auc, drift" in capsys.readouterr().err


def test_a_label_cannot_break_the_page(tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script>"
    write_run(tmp_path / "run", name, 0, {"gap": [1.0, 0.5]})
    assert main([str(tmp_path / "run"), "--page-only"]) == 0
    page = tmp_path / "run" / "report" / "report.html"
    assert name.lower() not in page.read_text().lower()
    assert data_of(page)["configurations"][0]["label"] == name.lower()


def test_a_seed_that_was_run_twice_counts_once_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (seed, end) in enumerate([(0, 0.1), (1, 0.2), (2, 0.3), (0, 0.9)]):
        write_run(tmp_path / f"{number}", "A", seed, {"gap": [1.0, end]})
    (a,) = configurations(read_runs([tmp_path])[0])
    assert [run.seed for run in a.runs] == ["0", "1", "2"]
    assert spread(a.finals("gap")) == "0.2 ± 0.1"
    assert a.curve("gap", "round")[-1].seeds == 3
    assert main([str(tmp_path), "--page-only"]) == 0
    (said,) = capsys.readouterr().err.splitlines()
    assert "seed 0 was run more than once" in said
    assert f"{tmp_path / '3'} is not counted (its final values are DIFFERENT FROM those" in said
    (row,) = data_of(tmp_path / "report" / "report.html")["finals"]["rows"]
    assert row["cells"][-1] == "3"


def test_bold_marks_the_best_cell_of_each_column(tmp_path: Path) -> None:
    write_run(tmp_path / "0", "A", 0, {"test_auc": [0.5, 0.9], "drift": [1, 0.3], "gap": [1, 2]})
    write_run(tmp_path / "1", "B", 0, {"test_auc": [0.5, 0.7], "drift": [1, 0.1], "gap": [1, 2]})
    assert main([str(tmp_path), "--page-only"]) == 0
    finals = data_of(tmp_path / "report" / "report.html")["finals"]
    columns = [finals["head"].index(name) for name in ("test_auc", "drift", "gap")]
    marks = [[row["best"][column] for column in columns] for row in finals["rows"]]
    assert marks == [[True, False, True], [False, True, True]]


def change(run: Path, **settings: Any) -> None:
    path = run / "config.yaml"
    OmegaConf.save(OmegaConf.merge(OmegaConf.load(path), settings), path)


def test_runs_that_differ_in_size_dtype_or_clients_are_ranked_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (name, clients, dtype, limit) in enumerate(
        [("A", 4, "float32", None), ("B", 8, "float64", 100)]
    ):
        run = write_run(tmp_path / f"{number}", name, 0, {"gap": [1.0, 0.5]})
        data = {"limit": limit}
        change(run, clients=clients, dtype=dtype, dataset=data, problem={"dataset": data})
    assert main([str(tmp_path), "--page-only"]) == 0
    (said,) = capsys.readouterr().err.splitlines()
    for part in ("clients (4, 8)", "dtype (float32, float64)", "dataset.limit (None, 100)"):
        assert part in said
    assert "problem.dataset" not in said
    assert data_of(tmp_path / "report" / "report.html")["warnings"] == [
        said.removeprefix("fedsys-report: ")
    ]


def test_runs_of_other_lengths_are_ranked_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "0", "A", 0, {"gap": [1.0, 0.5]})
    write_run(tmp_path / "1", "B", 0, {"gap": [1.0, 0.5, 0.1]})
    assert main([str(tmp_path), "--page-only"]) == 0
    assert "completed rounds (5, 10)" in capsys.readouterr().err


def test_bytes_of_compressed_messages_are_labelled_as_not_sent(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", "A", 0, {"gap": [1.0, 0.5]})
    change(run, communicator={"compression": "int8"})
    assert main([str(tmp_path), "--page-only"]) == 0
    data = data_of(tmp_path / "report" / "report.html")
    assert UNCOMPRESSED in data["axes"]["bytes_up"]
    assert "500 B (after int8, simulated)" in data["finals"]["rows"][0]["cells"]
    assert UNCOMPRESSED in data["finals"]["note"]


def test_the_names_of_metrics_are_no_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(tmp_path / "absolute"), r"../$\frac{"]
    write_run(tmp_path / "run" / "0", "A", 0, {name: [1.0, 0.5] for name in names})
    out = tmp_path / "run" / "out"
    assert main([str(tmp_path / "run"), "--out", str(out)]) == 0
    assert capsys.readouterr().err == ""
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"0", "out"}
    assert len(list(out.glob("*.png"))) == len(names)
    assert all(path.is_file() for path in out.iterdir())


def test_a_file_name_is_made_of_any_text() -> None:
    names = ["/a/b", "../up", "a/b", "a b", "report", "Waits", "..", "", "x" * 999, "\0", "C:\\x"]
    stems = list(file_stems(names, ("report", "waits")).values())
    assert len({stem.lower() for stem in [*stems, "report", "waits"]}) == len(names) + 2
    for stem in stems:
        assert 0 < len(stem) < 100
        assert stem == Path(stem).name
        assert stem not in (".", "..")
        assert not {*"/\\\0:"} & {*stem}
    assert slug("test_auc") == "test_auc"


def test_a_report_that_cannot_be_written_says_so_with_the_right_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "0", "A", 0, {"gap": [1.0, 0.5]})
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "0"), "--out", str(tmp_path / "file")]) == 2
    assert "cannot write to" in capsys.readouterr().err


def test_real_runs_of_two_ranks_are_read_as_they_are(tmp_path: Path) -> None:
    done = command(
        tmp_path,
        2,
        "--multirun",
        *("problem=quadratic_game", "algorithm=local_sgda", "problem.dim=2", "problem.samples=2"),
        *("clients=2", "rounds=2", "evaluate_every=1", "seed=0,1"),
    )
    assert done.returncode == 0, done.stderr
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--page-only"]) == 0
    data = data_of(tmp_path / "out" / "report.html")
    (configuration,) = data["configurations"]
    assert configuration["label"] == "local_sgda"
    assert [row[0] for row in configuration["curves"]["relative_error"]] == [0, 1, 2]
    assert [len(waits["seconds"]) for waits in data["waits"]] == [2, 2]


def test_an_unexpected_exception_is_one_line_and_its_traceback_is_printed_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("a part of the report\nfailed")

    monkeypatch.setattr("fedsys.report.main.read_runs", fail)
    monkeypatch.delenv("FEDSYS_DEBUG", raising=False)
    assert main([str(tmp_path)]) == 1
    line = "fedsys-report: unexpected ZeroDivisionError: a part of the report; FEDSYS_DEBUG=1 "
    assert capsys.readouterr().err == f"{line}prints the traceback\n"
    monkeypatch.setenv("FEDSYS_DEBUG", "1")
    assert main([str(tmp_path)]) == 1
    assert "in fail" in capsys.readouterr().err
