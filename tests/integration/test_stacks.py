"""Games are reproduced in stacks, with the run directories and the numbers of separate runs."""

from __future__ import annotations

import json
from math import isclose
from pathlib import Path
from typing import Any

import pytest

from fedsys.reproduce.entries import entries
from fedsys.reproduce.main import main
from fedsys.reproduce.pool import grouped, outcome_of
from fedsys.reproduce.stacks import stack_key
from fedsys.reproduce.sweep import PlannedRun, planned_runs

SHORT = ["rounds=4", "clients=2", "problem.dim=2", "seed=0,1", "problem.heterogeneity=high"]
CLOCKS = {"seconds", "seconds_waited"}


def runs_of(root: Path) -> dict[str, Path]:
    return {path.parent.name: path.parent for path in root.glob("small/*/runs/*/summary.json")}


def records(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_location(folder: Path) -> list[str]:
    lines = (folder / "config.yaml").read_text().splitlines()
    return [line for line in lines if not line.startswith("  dir:")]


def test_a_stack_leaves_the_run_directories_of_separate_runs(tmp_path: Path) -> None:
    overrides = [*SHORT, "algorithm.lr=0.1,0.3"]
    for name, more in (("stacked", []), ("separate", ["--separate"])):
        root = ["--root", str(tmp_path / name), "--jobs", "2"]
        assert main(["proxskip_fig6", *overrides, *root, *more]) == 0
    stacked, separate = runs_of(tmp_path / "stacked"), runs_of(tmp_path / "separate")
    assert stacked.keys() == separate.keys()
    assert len(stacked) == 3 * 2 * 2 * 2  # methods, noise, step sizes, seeds
    assert any((folder / "stack.txt").is_file() for folder in stacked.values())
    assert not any((folder / "stack.txt").is_file() for folder in separate.values())
    for name, folder in stacked.items():
        ours, theirs = records(folder), records(separate[name])
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert one.keys() == other.keys()
            for key in one.keys() - CLOCKS:
                assert isclose(one[key], other[key], rel_tol=1e-12, abs_tol=1e-12), (name, key)
        assert without_location(folder) == without_location(separate[name])
        summary, other = (
            json.loads((path / "summary.json").read_text()) for path in (folder, separate[name])
        )
        assert summary.keys() == other.keys()
        for key in ("choices", "clients", "ranks", "hyperparameters", "warnings"):
            assert summary[key] == other[key]
        assert (folder / "final.safetensors").is_file()


def test_a_run_that_diverges_in_a_stack_is_a_result_and_the_others_end(tmp_path: Path) -> None:
    overrides = [*SHORT, "rounds=40", "algorithm=lsgd", "algorithm.lr=0.1,1e30", "problem.noise=0"]
    assert main(["proxskip_fig6", *overrides, "--root", str(tmp_path), "--jobs", "1"]) == 0
    runs = planned_runs(
        entries()["proxskip_fig6"], overrides, next(tmp_path.glob("small/*")) / "runs"
    )
    outcomes = {run.tags["algorithm.lr"]: outcome_of(run) for run in runs}
    ended, diverged = outcomes["0.1"], outcomes["1e+30"]
    assert ended is not None
    assert ended.state == "ended"
    assert diverged is not None
    assert diverged.state == "diverged"
    assert "is not finite" in diverged.message


def planned(name: str, stack: str) -> PlannedRun:
    return PlannedRun(Path(name), "", {}, (), stack=stack)


def test_stacks_are_divided_where_processors_would_idle() -> None:
    runs = [planned(str(n), "game") for n in range(5)]
    assert [len(job) for job in grouped(runs, 1)] == [5]
    assert [len(job) for job in grouped(runs, 2)] == [3, 2]
    alone = [planned("a", ""), planned("b", "")]
    assert [len(job) for job in grouped([*runs, *alone], 2)] == [5, 1, 1]


SETTINGS: dict[str, Any] = {
    "algorithm": {"_target_": "fedsys.algorithms.LSGD", "lr": 0.1, "local_steps": 20},
    "problem": {"_target_": "fedsys.problems.HeterogeneousToy", "dim": 2},
    "logger": {"jsonl": None},
    "seed": 0,
    "rounds": 5,
}


def changed(**groups: dict[str, Any]) -> dict[str, Any]:
    return {**SETTINGS, **{name: {**SETTINGS[name], **group} for name, group in groups.items()}}


def test_runs_with_the_same_key_differ_in_numbers_and_seeds_only() -> None:
    key = stack_key(SETTINGS)
    assert key
    assert stack_key({**SETTINGS, "seed": 3}) == key
    assert stack_key(changed(algorithm={"lr": 0.3})) == key
    assert stack_key(changed(algorithm={"local_steps": 5})) != key
    assert stack_key(changed(problem={"dim": 3})) != key
    assert stack_key({**SETTINGS, "rounds": 6}) != key


@pytest.mark.parametrize(
    "groups",
    [
        {"algorithm": {"_target_": "fedsys.algorithms.AdaFGDA"}},
        {"algorithm": {"_target_": "fedsys.algorithms.Missing"}},
        {"problem": {"_target_": "fedsys.problems.DeepAUC"}},
        {"logger": {"tensorboard": {"_target_": "x"}}},
    ],
)
def test_runs_that_cannot_be_stacked_have_no_key(groups: dict[str, Any]) -> None:
    assert stack_key(changed(**groups)) == ""
