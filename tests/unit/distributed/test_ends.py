"""How runs end: with their launcher, without their store, by Ctrl-C; and how they begin again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import torch
from support.processes import Done, forks
from torch.distributed import TCPStore

from fedsys.core.errors import LostRankError
from fedsys.distributed import parent
from fedsys.distributed.failure_detector import FailureDetector
from fedsys.distributed.stop_signal import StopSignal
from fedsys.distributed.world import World
from fedsys.training.checkpoint import Checkpoints, Snapshot
from fedsys.training.run_directory import RunDirectory

REPOSITORY = Path(__file__).resolve().parents[3]
PATIENCE = 60.0

# Ranks end with their launcher.

LAUNCHER = """
import os, subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(rank.pid, flush=True)
rank.wait()
"""
RANK = """
import os, time
from fedsys.distributed.parent import end_with_launcher, launcher_is_stopped
end_with_launcher()
print("bound", flush=True)
while not launcher_is_stopped():
    time.sleep(0.02)
print("stopped", flush=True)
time.sleep(1000)
"""
STARTERS = {
    "torchrun": {"TORCHELASTIC_RUN_ID": "none"},
    "srun": {"SLURM_STEP_NUM_TASKS": "2"},
    "a shell": {},
}


def gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Start a process that starts a rank, which is bound to it; both process ids."""
    started: list[int] = []

    def launch(environment: dict[str, str]) -> tuple[subprocess.Popen[str], int]:
        launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, RANK],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert launcher.stdout is not None
        rank = int(launcher.stdout.readline())
        started.extend((rank, launcher.pid))
        assert launcher.stdout.readline() == "bound\n"
        return launcher, rank

    yield launch
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("starter", STARTERS)
def test_a_rank_ends_when_its_launcher_is_killed_and_a_process_of_a_shell_does_not(
    start: Callable[..., tuple[subprocess.Popen[str], int]], starter: str
) -> None:
    launcher, rank = start(STARTERS[starter])
    launcher.kill()
    launcher.wait()
    assert gone(rank, 1.0 if starter == "a shell" else PATIENCE) == (starter != "a shell")


def test_a_rank_whose_launcher_died_before_it_could_bind_itself_ends_at_once() -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    environment = {"TORCHELASTIC_RUN_ID": "none", parent.LAUNCHER: str(dead.pid)}
    done = subprocess.run(
        [sys.executable, "-c", RANK],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_rank_can_tell_that_its_launcher_is_stopped(
    start: Callable[..., tuple[subprocess.Popen[str], int]],
) -> None:
    launcher, _ = start(STARTERS["torchrun"])
    launcher.send_signal(signal.SIGSTOP)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "stopped\n"


# A store that is lost.


def keep_store(there: Connection) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    there.send(store.port)
    time.sleep(1000)


@pytest.fixture
def lost_store() -> Iterator[tuple[Any, TCPStore]]:
    """A process that keeps a store, to be killed, and a client of the store."""
    here, there = forks().Pipe()
    keeper = forks().Process(target=keep_store, args=(there,), daemon=True)
    keeper.start()
    yield keeper, TCPStore("127.0.0.1", here.recv(), is_master=False)
    keeper.kill()


def test_a_store_that_is_lost_while_a_checkpoint_is_written_is_a_lost_rank(
    lost_store: tuple[Any, TCPStore], tmp_path: Path
) -> None:
    keeper, store = lost_store
    checkpoints = Checkpoints(tmp_path, World(0, 2, _store=store))
    keeper.kill()
    keeper.join()
    rows = {"x.0": torch.ones(2)}
    checkpoints._write(tmp_path, tmp_path / "step-1", Snapshot(1, 0.0, {}), rows)
    with pytest.raises(LostRankError, match="did not write its part"):
        checkpoints._wait()
    assert LostRankError.exit_code == 1


def watch_without_store(port: int, there: Connection) -> None:
    """Compute without waiting for others until long after the store was lost."""
    begin = time.monotonic()
    store = TCPStore("127.0.0.1", port, is_master=False)
    calls = FailureDetector(1, ["a", "a"], store, lambda: time.monotonic() > begin + 2.5)
    calls.listen(lambda line: there.send(line))
    there.send("listens")
    time.sleep(PATIENCE)


def test_a_rank_that_computes_while_the_store_is_lost_ends_when_it_next_waits_for_others(
    lost_store: tuple[Any, TCPStore],
) -> None:
    keeper, store = lost_store
    here, there = forks().Pipe()
    rank = forks().Process(target=watch_without_store, args=(store.port, there))
    rank.start()
    assert here.recv() == "listens"
    keeper.kill()
    rank.join(PATIENCE)
    assert rank.exitcode == LostRankError.exit_code
    assert here.recv().startswith("rank 0 (a) is lost")


# Ctrl-C.


def interrupt(times: int, has_state: bool, printed: Path) -> None:
    """Get SIGINT, as a terminal sends it."""
    os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT), 2)
    stop = StopSignal(World())
    stop.listen()
    if has_state:
        stop.begin()
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(0)


@pytest.mark.parametrize(
    ("times", "has_state", "code", "said"),
    [
        (1, True, 0, ""),
        (2, True, 130, "ended at once; the newest checkpoint is kept"),
        (1, False, 130, "stopped before the first step; there is nothing to keep"),
    ],
)
def test_ctrl_c_ends_a_process_at_once_when_it_is_the_second_or_there_is_no_state(
    tmp_path: Path, times: int, has_state: bool, code: int, said: str
) -> None:
    printed = tmp_path / "printed"
    process = forks().Process(target=interrupt, args=(times, has_state, printed))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == code
    assert printed.read_text() == (f"fedsys: SIGINT (Ctrl-C): {said}\n" if said else "")


# The same command again.


def test_a_command_waits_for_a_run_that_is_ending_and_says_so(
    fedsys: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = RunDirectory(tmp_path / "runs" / "again")
    ending.path.mkdir(parents=True)
    ending.open({}, resume=True)
    open_directory = RunDirectory.open

    def open_while_it_ends(self: RunDirectory, *arguments: Any) -> bool:
        Timer(1.2, ending.close).start()
        return open_directory(self, *arguments)

    monkeypatch.setattr(RunDirectory, "open", open_while_it_ends)
    game = ("algorithm=local_sgda", "problem=quadratic_game", "clients=2", "rounds=1")
    done = fedsys(*game, "run.name=again")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"fedsys: waiting up to 5 s for another run to leave {ending.path}\n"
