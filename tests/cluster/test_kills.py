"""kill -9 of any rank at any moment: the launcher starts them again, and the bits are the same.

FEDSYS_KILLS says how many (20). All kills hit one run, at random moments of its start and its
rounds, and while it writes a checkpoint, which it does nearly all the time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from safetensors.torch import load_file

from cluster.runs import PATIENCE, children, environment, newest_checkpoint

KILLS = int(os.environ.get("FEDSYS_KILLS", "20"))
RANKS = 3
ROUNDS = 120 * KILLS
GAME = (
    "algorithm=local_sgda",
    "problem=quadratic_game",
    "problem.dim=50",
    "problem.noise=1",
    "clients=5",
    "dtype=float64",
    "evaluate_every=100",
    f"rounds={ROUNDS}",
)


def launched(folder: Path, restarts: int, *settings: str) -> subprocess.Popen[str]:
    options = ("--standalone", f"--nproc-per-node={RANKS}", f"--max-restarts={restarts}")
    job = (*GAME, *settings, f"run.dir={folder}")
    return subprocess.Popen(
        [sys.executable, "-m", "fedsys.launch", *options, "--", *job],
        cwd=folder.parent,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def bits(file: Path) -> dict[str, bytes]:
    """Of every tensor; the header of the file has no fixed order."""
    return {name: value.numpy().tobytes() for name, value in load_file(file).items()}


class Killer:
    """Kills ranks of a run under the launcher.

    Attributes:
        done: how many it killed of each rank, and at which kind of moment.
    """

    def __init__(self, job: subprocess.Popen[str], folder: Path) -> None:
        self._job, self._folder = job, folder
        self._dice, self._before = Random(7), ""
        self.done: Counter[str | int] = Counter()

    def kill(self) -> None:
        """Once, at a random moment."""
        moment = self._dice.choices(("start", "round", "checkpoint"), (1, 1, 2))[0]
        if moment == "start":
            time.sleep(self._dice.random() * 3)
        else:
            self._wait_until(lambda: newest_checkpoint(self._folder) > self._before)
            time.sleep(self._dice.random() * 0.5)
        if moment == "checkpoint":
            self._wait_until(lambda: any(self._folder.glob("checkpoints/.step-*.partial")))
        self._before = newest_checkpoint(self._folder)
        ranks, victim = children(self._job.pid), self._dice.randrange(RANKS)
        if len(ranks) < RANKS:
            return  # the launcher is about to start them
        with suppress(ProcessLookupError):
            os.kill(ranks[victim], signal.SIGKILL)
            self.done.update((moment, victim))
        self._wait_until(lambda: ranks[victim] not in children(self._job.pid))

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self._job.poll() is not None:
                raise AssertionError(f"{self._job.returncode}: {self._job.communicate()[1]}")
            time.sleep(0.01)


@pytest.mark.timeout(6 * PATIENCE)
def test_killed_at_random_moments_a_run_ends_bit_for_bit_as_if_undisturbed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with launched(killed, KILLS, "checkpoint.every=2") as job:
        killer = Killer(job, killed)
        while sum(killer.done[rank] for rank in range(RANKS)) < KILLS:
            killer.kill()
        assert job.wait(3 * PATIENCE) == 0, job.communicate()[1]
    with launched(whole, 0, "checkpoint.every=0") as job:  # writes the last one only
        assert job.wait(3 * PATIENCE) == 0, job.communicate()[1]
    with capsys.disabled():
        print(f"\nkills of each rank and at each kind of moment: {dict(killer.done)}")
    assert killer.done["checkpoint"] > 0
    (last,) = whole.glob("checkpoints/step-*")
    files = [whole / "final.safetensors", *last.glob("*.safetensors")]
    assert len(files) == 1 + RANKS
    for file in files:
        assert bits(killed / file.relative_to(whole)) == bits(file)
