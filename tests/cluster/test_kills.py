"""kill -9 of any rank at any moment: the launcher restarts the ranks, and every bit is the same.

FEDSYS_KILLS is the number of kills (20). All of them hit one run, at random moments of its start
and its rounds, and while it writes a checkpoint, which it does nearly all the time.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from kills import Reference, Trial, drawn, run_until_caught
from safetensors.torch import load_file
from support.launched_runs import Run, ranks_of

from cluster.runs import PATIENCE, children, environment, newest_checkpoint, wait_until

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
    """Return the bytes of every tensor; the header of the file has no fixed order."""
    return {name: value.numpy().tobytes() for name, value in load_file(file).items()}


class Killer:
    """Kills ranks of a run under the launcher.

    Attributes:
        done: number of kills by rank and by kind of moment.
    """

    def __init__(self, job: subprocess.Popen[str], folder: Path) -> None:
        self._job, self._folder = job, folder
        self._dice, self._before = Random(7), ""
        self.done: Counter[str | int] = Counter()

    def kill(self) -> None:
        """Kill one rank at a random moment."""
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
            return  # the launcher is restarting the ranks
        with suppress(ProcessLookupError):
            os.kill(ranks[victim], signal.SIGKILL)
            self.done.update((moment, victim))
        self._wait_until(lambda: ranks[victim] not in children(self._job.pid))

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._job.poll() is not None:
                raise AssertionError(f"{self._job.returncode}: {self._job.communicate()[1]}")
            time.sleep(0.01)


@pytest.mark.timeout(6 * PATIENCE)
def test_a_run_that_is_killed_at_random_moments_ends_bit_identical_to_an_undisturbed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with launched(killed, KILLS, "checkpoint.every=2") as job:
        killer = Killer(job, killed)
        while sum(killer.done[rank] for rank in range(RANKS)) < KILLS:
            killer.kill()
        assert job.wait(3 * PATIENCE) == 0, job.communicate()[1]
    with launched(whole, 0, "checkpoint.every=0") as job:  # writes only the final one
        assert job.wait(3 * PATIENCE) == 0, job.communicate()[1]
    with capsys.disabled():
        print(f"\nkills by rank and by kind of moment: {dict(killer.done)}")
    assert killer.done["checkpoint"] > 0
    (last,) = whole.glob("checkpoints/step-*")
    files = [whole / "final.safetensors", *last.glob("*.safetensors")]
    assert len(files) == 1 + RANKS
    for file in files:
        assert bits(killed / file.relative_to(whole)) == bits(file)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Return undisturbed runs of all jobs."""
    return Reference(tmp_path_factory.mktemp("whole"))


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("trial", drawn(15, seed=3), ids=str)
def test_after_any_kill_the_same_command_ends_bit_identical_and_leaves_no_process(
    reference: Reference, tmp_path: Path, trial: Trial
) -> None:
    outcome = run_until_caught(trial, reference, tmp_path)
    assert not outcome.faults, outcome
    assert outcome.caught or trial.moment == "last checkpoint", "nothing was killed"


@pytest.mark.timeout(PATIENCE)
def test_a_stopped_launcher_is_reported_in_one_line(tmp_path: Path) -> None:
    folder, mark = tmp_path / "run", "stopped"
    job = (*GAME[:-1], "rounds=10000000", "checkpoint.every=20", "communicator.timeout=20")
    run = Run(RANKS, job, folder, mark, 0, execs=True)
    wait_until("a checkpoint", lambda: newest_checkpoint(folder) > "", PATIENCE)
    os.kill(run.pid, signal.SIGSTOP)
    try:
        wait_until("the end of the ranks", lambda: not ranks_of(run.pid, mark), PATIENCE)
        (line,) = run.said().splitlines()
        host = socket.gethostname()
        assert line.startswith(f"fedsys: the launcher of {host} (process {run.pid}) is stopped")
    finally:
        os.kill(run.pid, signal.SIGCONT)
    assert run.wait() == 1
