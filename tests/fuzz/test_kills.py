"""kill -9 of any rank at any moment; the ranks are started again as a launcher would do it.

FEDSYS_KILLS says how often. Two more trials kill a run under the launcher; `make kills` has 100
of them, of all kinds, and tests/cluster/test_kills.py some.
"""

from __future__ import annotations

import os
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

import pytest
import torch
from kills import Reference, Trial, run_trial
from safetensors.torch import load_file
from support.processes import command, environments, start_command

KILLS = int(os.environ.get("FEDSYS_KILLS", "2"))
RANKS = 3
ROUNDS = 100_000
GAME = (
    "algorithm=local_sgda",
    "problem=quadratic_game",
    "problem.dim=50",
    "problem.noise=1",
    "clients=5",
    "dtype=float64",
    "evaluate_every=7",
    "checkpoint.every=3",
)


def newest(run: Path) -> int:
    names = (path.name for path in run.glob("checkpoints/step-*"))
    return max((int(name.removeprefix("step-")) for name in names), default=-1)


def attempt(folder: Path, number: int, *arguments: str) -> list[BaseProcess]:
    """The ranks, as their launcher starts them for the n-th time."""
    restart = {"TORCHELASTIC_RESTART_COUNT": str(number)}
    return [
        start_command(folder, {**environment, **restart}, arguments, folder / "printed")
        for environment in environments(RANKS)
    ]


@pytest.mark.timeout(120 + 60 * KILLS)
def test_a_run_whose_ranks_are_killed_again_and_again_ends_bit_for_bit_as_if_undisturbed(
    tmp_path: Path,
) -> None:
    dice, run = Random(7), tmp_path / "runs" / "killed"
    for kill in range(KILLS):
        before, ranks = (
            newest(run),
            attempt(tmp_path, kill, *GAME, f"rounds={ROUNDS}", "run.name=killed"),
        )
        while newest(run) <= before and all(rank.is_alive() for rank in ranks):
            time.sleep(0.01)
        time.sleep(dice.random() / 4)  # in a round, or while the next checkpoint is written
        assert all(rank.is_alive() for rank in ranks), (tmp_path / "printed").read_text()
        victim = dice.randrange(RANKS)
        ranks[victim].kill()
        for rank in ranks:
            rank.join(60)
            assert rank.exitcode is not None, "a rank goes on without the others"
    rounds = newest(run) // 10 + 30
    for name in ("killed", "whole"):
        done = command(tmp_path, RANKS, *GAME, f"rounds={rounds}", f"run.name={name}")
        assert done.returncode == 0, done.stderr
        assert ("continued from step" in done.stdout) == (name == "killed")
    whole = tmp_path / "runs" / "whole"
    last = f"checkpoints/step-{10 * rounds:09d}"
    files = [f"{last}/{file.name}" for file in (whole / last).glob("*.safetensors")]
    assert len(files) == RANKS
    for file in ("final.safetensors", *files):
        ours, theirs = (load_file(folder / file) for folder in (run, whole))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items()), file


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("moment", "victims"), [("round", "the launcher"), ("last checkpoint", "two ranks")]
)
def test_a_run_that_is_killed_under_the_launcher_leaves_no_process_and_ends_bit_for_bit(
    reference: Reference, tmp_path: Path, moment: str, victims: str
) -> None:
    outcome = run_trial(Trial("local_sgda", moment, victims, seed=1), reference, tmp_path / "run")
    assert not outcome.faults, outcome
