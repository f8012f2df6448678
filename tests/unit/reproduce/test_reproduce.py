"""Reproduction: entries are whole, their runs parallel and resumable, their claims decided."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from support.run_folders import write_run

from fedsys.core.errors import InputError
from fedsys.reproduce import writing
from fedsys.reproduce.claims import verdicts
from fedsys.reproduce.entries import (
    FIGURES,
    Claim,
    Entry,
    Numbers,
    Part,
    entries,
    folder,
    papers,
    read_paper,
)
from fedsys.reproduce.figure import _zoom_past_start, draw
from fedsys.reproduce.lines import Line, lines_of
from fedsys.reproduce.main import main
from fedsys.reproduce.pool import Outcome
from fedsys.reproduce.results import EntryResult, result_of, table
from fedsys.reproduce.sweep import PlannedRun, count_runs, planned_runs
from fedsys.training import config

SHORT = ("rounds=30", "evaluate_every=10", "problem.dim=2", "problem.samples=2", "clients=2")


def test_every_experiment_of_an_entry_is_there_and_every_entry_has_runs_a_claim_and_a_name() -> (
    None
):
    assert len(entries()) == sum(len(paper.entries) for paper in papers().values())
    for name, entry in entries().items():
        for part in entry.parts:
            path = config.folder() / "experiment" / f"{part.experiment}.yaml"
            assert path.is_file(), f"{name}: {part.experiment}"
        assert entry.claims, name


def test_the_sweep_is_that_of_the_experiment_with_seeds_and_overrides(tmp_path: Path) -> None:
    entry = entries()["proxskip_fig7"]
    # 3 methods and 2 distances.
    assert count_runs(entry, []) == 6
    overrides = ["algorithm=proxskip", "seed=0,1"]
    runs = planned_runs(entry, overrides, tmp_path)
    assert [(run.tags["problem.delta"], run.tags["seed"]) for run in runs] == [
        *(("0.0", "0"), ("0.0", "1"), ("1000000.0", "0"), ("1000000.0", "1"))
    ]
    assert runs[0].arguments[0] == "experiment=proxskip/fig7"
    assert runs[1].label == "proxskip, delta=0.0, seed=1"
    # The same settings are the same folder, others another.
    again = planned_runs(entry, overrides, tmp_path)
    longer = planned_runs(entry, [*overrides, "rounds=7"], tmp_path)
    assert len({run.folder for run in (*runs, *again)}) == 4
    assert len({run.folder for run in (*runs, *longer)}) == 8


def test_an_override_picks_among_panels_and_makes_none_that_its_title_does_not_fit(
    tmp_path: Path,
) -> None:
    entry = entries()["proxskip_fig4"]
    runs = planned_runs(entry, ["problem.batch_size=1", "algorithm.lr=7", "seed=0"], tmp_path)
    assert {(run.part, run.tags["algorithm"]) for run in runs} == {
        ("single samples", name) for name in ("proxskip", "local_seg", "lsgd")
    }
    with pytest.raises(InputError, match="no such panel"):
        planned_runs(entry, ["problem.batch_size=2"], tmp_path)


def test_seeds_are_the_first_that_the_experiment_lists(tmp_path: Path) -> None:
    """Those of Table 1 begin at 12: 0, 1, 10 and 11 chose its settings."""
    runs = planned_runs(entries()["fedbio_table1"], [], tmp_path)
    assert {run.tags["seed"] for run in runs} == {"12", "13", "14"}
    none_listed = planned_runs(entries()["proxskip_fig1"], [], tmp_path)
    assert {run.tags["seed"] for run in none_listed} == {"0", "1", "2"}


@pytest.mark.parametrize("name", ["adafgda_fig6", "localscgdam_fig4"])
def test_what_an_entry_overrides_at_the_papers_size_fits_its_experiment(
    name: str, tmp_path: Path
) -> None:
    one = {
        "adafgda_fig6": ["algorithm=fgda", "algorithm.lr_x=1", "algorithm.lr_y=1"],
        "localscgdam_fig4": ["algorithm=coda"],
    }
    runs = planned_runs(entries()[name], ["scale=paper", *one[name]], tmp_path)
    assert len(runs) == {"adafgda_fig6": 2, "localscgdam_fig4": 6}[name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["proxskip_fig99"], "no figure or table is named 'proxskip_fig99'; did you mean proxskip"),
        (["proxskip_fig7", "scale=huge"], "scale must be one of small, paper, got 'huge'"),
        (["proxskip_fig7", "algorithm=nonsense"], "algorithm=nonsense is unknown"),
        (["proxskip_fig4", "algorithm=lesgd"], "the entry has none of the methods that algorithm="),
        (["proxskip_fig7", "roundz=3"], "no option roundz; did you mean rounds?"),
    ],
)
def test_an_invalid_argument_gives_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([*arguments, "--root", str(tmp_path / "root")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "root").exists()


def test_an_invalid_file_of_entries_is_refused() -> None:
    entry = "{what: a, title: b, parts: [{experiment: x}], metrics: [gap], claims: [{says: c}]}"
    with pytest.raises(InputError, match="needs one comparison"):
        read_paper(f"title: t\nentries: {{one: {entry}}}", "mine.yaml")
    pie = entry.replace("{says: c}", "").replace("title: b", "title: b, figure: pie")
    with pytest.raises(InputError, match="must be curves or bars, got 'pie'"):
        read_paper(f"title: t\nentries: {{one: {pie}}}", "mine.yaml")
    with pytest.raises(InputError, match=r"mine\.yaml"):
        read_paper("title: t\nentriez: {}", "mine.yaml")


@pytest.mark.timeout(300)
def test_runs_are_run_once_and_a_run_that_diverges_is_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real runs: two methods, of which one is given a step that no game survives."""
    arguments = ["proxskip_fig4", *SHORT, "problem.batch_size=null", "dtype=float32", "seed=0"]
    arguments += ["algorithm.lr=0.1,1e30", "--root", str(tmp_path), "--jobs", "2"]
    assert main(arguments) == 0
    first = capsys.readouterr()
    assert first.out.count("ended after") == 3
    assert first.out.count("diverged after") == 3
    assert "2, 1 diverged" in first.out
    (folder,) = (tmp_path / "small").iterdir()
    assert {p.name for p in folder.iterdir()} == {
        *("runs", "figure.png", "figure.svg", "table.md", "result.json")
    }
    result = EntryResult.load(folder / "result.json")
    assert (result.runs, result.overrides[0]) == (6, "rounds=30")
    assert all(result.commits)
    assert all(result.machines)
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/metrics.jsonl")}
    assert main(arguments) == 0
    assert "6 of 6 runs were already finished" in capsys.readouterr().out
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}
    # What was made with overrides is not what the paper did, and is not published.
    assert main(["write", "--root", str(tmp_path), "--into", str(tmp_path / "page")]) == 0
    assert (
        "proxskip_fig4` | Figure 4: quadratic game, tuned step sizes | - | not run yet"
        in (tmp_path / "page" / "README.md").read_text()
    )


@pytest.mark.timeout(300)  # on busy cores the server of its processes takes minutes to import torch
def test_an_interrupted_reproduction_stops_its_runs_and_resumes_later(tmp_path: Path) -> None:
    arguments = ["proxskip_fig7", "rounds=100000", "evaluate_every=100", "checkpoint.every=100"]
    arguments += ["algorithm=local_seg", "problem.delta=0.0", "--root", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsys.reproduce", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        # A shell that starts the tests in the background has them ignore Ctrl-C, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 240
    try:
        while not list(tmp_path.glob("small/*/runs/*/checkpoints/*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == "fedsys-reproduce: interrupted; run the same command to continue\n"
    (metrics,) = tmp_path.glob("small/*/runs/*/metrics.jsonl")
    size = metrics.stat().st_size
    time.sleep(0.5)
    assert metrics.stat().st_size == size, "nobody is left who writes"
    json.loads(metrics.read_text().splitlines()[-1])


@pytest.fixture
def finished(tmp_path: Path) -> tuple[Entry, list[PlannedRun], dict[Path, Outcome]]:
    """A tuned method, one that diverges with one seed of its better step, and one that is lost."""
    entry = Entry(
        what="Figure 0",
        title="by hand",
        parts=[Part("quadratic_game")],
        metrics=["gap"],
        numbers=[Numbers("gap", {"a": 0.2})],
        claims=[Claim("a is better than b", better="a", than=["b"])],
    )
    values = {("a", "0.1"): (0.2, 0.4), ("a", "0.2"): (0.1, 0.2), ("b", "0.1"): (1.0, 3.0)}
    runs, outcomes = [], {}
    for (method, lr), finals in values.items():
        for seed, final in enumerate(finals):
            folder = tmp_path / f"{method}-{lr}-{seed}"
            write_run(folder, method, seed, {"gap": [4.0, 2 * final, final]}, lr=float(lr))
            tags = {"algorithm": method, "algorithm.lr": lr, "seed": str(seed)}
            runs.append(PlannedRun(folder, "", tags, ()))
            outcomes[folder] = Outcome("ended", commit="abc", machine="m", date="2026-01-01")
    lost = PlannedRun(tmp_path / "c", "", {"algorithm": "c", "seed": "0"}, ())
    runs.append(lost)
    outcomes[lost.folder] = Outcome("failed", "exit code 2: no data")
    return entry, runs, outcomes


def test_the_best_step_by_its_mean_stands_for_a_method_beside_the_papers_number(
    finished: tuple[Entry, list[PlannedRun], dict[Path, Outcome]],
) -> None:
    entry, runs, outcomes = finished
    lines = lines_of(entry, runs, outcomes)
    assert [(line.name, line.setting, line.tried) for line in lines] == [
        ("a", "lr=0.2", 2),
        ("b", "lr=0.1", 1),
    ]
    result = result_of("zero", entry, "small", [], lines, outcomes)
    assert result.missing == ["c: exit code 2: no data"]
    assert table(result).splitlines()[2] == (
        "| a | gap | 0.2 | 0.15 ± 0.071 | 0.75 | lr=0.2 | 2 | 2 |"
    )
    (verdict,) = result.verdicts
    assert verdict.holds
    assert verdict.numbers == "a 0.15, b 2"


def test_a_step_with_which_one_seed_diverged_is_not_the_best(
    finished: tuple[Entry, list[PlannedRun], dict[Path, Outcome]],
) -> None:
    entry, runs, outcomes = finished
    unlucky = next(r for r in runs if r.tags["algorithm.lr"] == "0.2" and r.tags["seed"] == "1")
    outcomes[unlucky.folder] = Outcome("diverged", "z is not finite")
    lines = lines_of(entry, runs, outcomes)
    assert (lines[0].setting, lines[0].diverged) == ("lr=0.1", 1)


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        (Claim("", better="b", than=["a"]), False),
        (Claim("", better="a", than=["b", "absent"]), True),
        (Claim("", either=["a", "absent"], than=["b"]), True),
        (Claim("", either=["b", "absent"], than=["a"]), False),
        (Claim("", reaches={"a": 0.16}), True),
        (Claim("", reaches={"a": 0.1}), False),
        (Claim("", within={"a": 20, "b": 20}), True),
        (Claim("", within={"a": 10, "b": 10}), False),
        (Claim("", better="a", than=["b"], to=0.5), True),
        (Claim("", better="b", than=["a"], to=0.5), False),
        (Claim("", better="a", than=["b"], to=4.0), False),  # both are there at the same time
        (Claim("", better="a", than=["b"], to=0.01), False),  # neither ever is
        (Claim("", better="a", than=["b"], on_average=True), True),
        (Claim("", better="b", than=["a"], on_average=True), False),
        (Claim("", better="a", than=["b"], sooner=True), True),
        (Claim("", better="b", than=["a"], sooner=True), False),
    ],
)
def test_a_claim_is_decided_by_last_values_or_by_the_first_to_reach_a_value(
    finished: tuple[Entry, list[PlannedRun], dict[Path, Outcome]], claim: Claim, holds: bool
) -> None:
    entry, runs, outcomes = finished
    (verdict,) = verdicts(entry, claim, lines_of(entry, runs, outcomes))
    assert verdict.holds is holds


def test_the_first_to_reach_a_value_is_reported_with_its_place(
    finished: tuple[Entry, list[PlannedRun], dict[Path, Outcome]],
) -> None:
    entry, runs, outcomes = finished
    claim = Claim("", better="a", than=["b"], to=0.5)
    (verdict,) = verdicts(entry, claim, lines_of(entry, runs, outcomes))
    assert verdict.numbers == "at 0.5: a at round 5, b never"


def test_a_claim_on_lines_that_were_not_run_is_left_open(
    finished: tuple[Entry, list[PlannedRun], dict[Path, Outcome]],
) -> None:
    entry, runs, outcomes = finished
    lines: list[Line] = lines_of(entry, runs, outcomes)
    assert verdicts(entry, Claim("", better="c", than=["a"]), lines) == []
    assert verdicts(entry, Claim("", either=["c", "d"], than=["a"]), lines) == []
    assert verdicts(entry, Claim("", reaches={"a": 1}, where={"part": "other"}), lines) == []
    assert verdicts(entry, Claim("", below_bound=True), lines) == [], "no run knows a bound"


def test_a_bound_is_the_mean_over_the_seeds_and_absent_if_one_of_them_has_none(
    tmp_path: Path,
) -> None:
    entry = Entry("Figure 0", "by hand", [Part("quadratic_game")], ["gap"])
    runs = []
    for seed, bound in enumerate([1.0, 3.0, None]):
        write_run(tmp_path / str(seed), "a", seed, {"gap": [1.0, 0.5]})
        summary = json.loads((tmp_path / str(seed) / "summary.json").read_text())
        summary["theory"] = {"bound": {"at_most": bound}} if bound else {}
        (tmp_path / str(seed) / "summary.json").write_text(json.dumps(summary))
        tags = {"algorithm": "a", "seed": str(seed)}
        runs.append(PlannedRun(tmp_path / str(seed), "", tags, ()))
    outcomes = {run.folder: Outcome("ended") for run in runs}
    assert [line.bound() for line in lines_of(entry, runs[:2], outcomes)] == [2.0]
    assert [line.bound() for line in lines_of(entry, runs, outcomes)] == [None]


def test_the_page_has_the_numbers_of_results_and_says_what_was_not_run(
    finished: tuple[Entry, list[PlannedRun], dict[Path, Outcome]], tmp_path: Path
) -> None:
    entry, runs, outcomes = finished
    result = result_of("vi_bilinear", entry, "small", [], lines_of(entry, runs, outcomes), outcomes)
    made = tmp_path / "root" / "small" / "vi_bilinear"
    made.mkdir(parents=True)
    replace(result, missing=[]).save(made / "result.json")
    (made / "figure.png").write_bytes(b"picture")
    path = writing.publish(tmp_path / "root", tmp_path / "page")
    page = path.parent / "vi" / "results.md"
    text, overview = page.read_text(), path.read_text()
    assert text.splitlines()[2] == papers()["vi"].citation
    assert "| a is better than b | - | a 0.15, b 2 | holds |" in text
    assert "![Section 3](figures/vi_bilinear.png)" in text
    assert (page.parent / "figures" / "vi_bilinear.png").read_bytes() == b"picture"
    assert overview.count("not run yet") == len(entries()) - 1
    assert "| 4 | 1 of 1 | [vi](vi/results.md) |" in overview
    # Written again where there are no runs, nothing is lost, nor is text that was added by hand.
    by_hand = f"\n{writing._MANUAL}\n\n## More\n"
    page.write_text(text + by_hand)
    assert writing.publish(tmp_path / "nowhere", tmp_path / "page").read_text() == overview
    assert page.read_text() == text + by_hand


def test_the_pages_of_the_repository_are_those_that_their_results_give(tmp_path: Path) -> None:
    ours = folder()
    shutil.copytree(ours, tmp_path / "papers")
    writing.publish(tmp_path / "nowhere", tmp_path / "papers")
    for page in (ours / "README.md", *ours.glob("*/results.md")):
        again = tmp_path / "papers" / page.relative_to(ours)
        assert again.read_text() == page.read_text(), f"{page}: run fedsys-reproduce write"


def test_of_two_steps_that_end_in_rounding_the_one_that_is_there_first_is_the_best(
    tmp_path: Path,
) -> None:
    entry = Entry("Figure 0", "by hand", [Part("quadratic_game")], ["gap"])
    curves = {"0.1": [1.0, 1e-10, 1e-31], "0.2": [1.0, 1e-30, 2e-30]}
    runs = []
    for lr, values in curves.items():
        write_run(tmp_path / lr, "a", 0, {"gap": values}, lr=float(lr))
        tags = {"algorithm": "a", "algorithm.lr": lr, "seed": "0"}
        runs.append(PlannedRun(tmp_path / lr, "", tags, ()))
    (line,) = lines_of(entry, runs, {run.folder: Outcome("ended") for run in runs})
    assert (line.setting, line.tried, line.diverged) == ("lr=0.2", 2, 0)


def test_a_last_value_that_is_infinite_is_a_run_that_diverged(tmp_path: Path) -> None:
    entry = Entry("Figure 0", "by hand", [Part("quadratic_game")], ["gap"])
    write_run(tmp_path / "run", "a", 0, {"gap": [1.0, float("inf")]})
    run = PlannedRun(tmp_path / "run", "", {"algorithm": "a", "seed": "0"}, ())
    (line,) = lines_of(entry, [run], {run.folder: Outcome("ended")})
    assert (line.best, line.absent()) == (None, "diverged")


def test_equal_is_not_better(tmp_path: Path) -> None:
    entry = Entry("Figure 0", "by hand", [Part("quadratic_game")], ["gap"])
    runs = []
    for name in ("a", "b"):
        write_run(tmp_path / name, name, 0, {"gap": [1.0, 0.5]})
        runs.append(PlannedRun(tmp_path / name, "", {"algorithm": name, "seed": "0"}, ()))
    lines = lines_of(entry, runs, {run.folder: Outcome("ended") for run in runs})
    (verdict,) = verdicts(entry, Claim("", better="a", than=["b"]), lines)
    assert not verdict.holds


@pytest.mark.parametrize("kind", FIGURES)
def test_a_figure_is_of_curves_or_of_bars(
    finished: tuple[Entry, list[PlannedRun], dict[Path, Outcome]], tmp_path: Path, kind: str
) -> None:
    entry, runs, outcomes = finished
    made = draw(replace(entry, figure=kind), lines_of(entry, runs, outcomes), tmp_path / "figure")
    assert [path.name for path in made] == ["figure.png", "figure.svg"]
    titled = "diamonds" in made[1].read_text()
    assert titled is (kind == "bars"), "the paper's number is marked beside ours"


@pytest.mark.parametrize(("later", "seen"), [([0.90, 0.95], False), ([0.4, 0.95], True)])
def test_a_start_that_is_far_away_is_left_out(later: list[float], seen: bool) -> None:
    panel = Figure().subplots()
    panel.plot([0.3, *later])
    _zoom_past_start(panel, [0.3, *later], later)
    assert bool(panel.get_ylim()[0] < 0.3) is seen
    assert panel.get_ylim()[1] > 0.95


def test_the_differences_to_the_rivals_of_compositional_auc_are_listed() -> None:
    paper = papers()["localscgdam"]
    read = {slip.where: slip.read for slip in paper.slips}
    assert "exact class counts in all tables" in read["LocalSGDM_RL"]
    assert "no dual restart" in read["CoDA"]
    assert "584 positives of 33,126" in read["Table 4, Melanoma"]
    for entry in paper.entries.values():
        assert any("exact class counts" in note for note in entry.notes)


def test_figures_and_authors_are_cited_as_the_papers_print_them() -> None:
    root = Path(__file__).parents[3]
    stl10 = (root / "conf/experiment/localscgdam/stl10.yaml").read_text()
    assert "Figure 5, STL10" in stl10
    assert "Huang and Li" not in (root / "README.md").read_text()
    for name, paper in papers().items():
        assert re.fullmatch(r"\d{4}\.\d{5}", paper.arxiv), name
        assert re.search(r"20\d\d$", paper.venue), name
        page = (folder() / name / "results.md").read_text()
        assert page.startswith(f"# {paper.title}\n\n{paper.authors}. "), name
        for entry in paper.entries.values():
            numbered = r"(Figure|Table|Section|Theorems?) \d"
            assert re.match(numbered, entry.what), f"{name}: {entry.what}"
