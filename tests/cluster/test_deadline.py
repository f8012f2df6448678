"""A rank dies or hangs and is not restarted: the others exit within the timeout, with one line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.runs import PATIENCE, children, environment, newest_checkpoint, wait_until

pytestmark = pytest.mark.timeout(2 * PATIENCE)

RANKS = 4
GRACE = 5.0
SETTINGS = ("algorithm=local_sgda", "problem=quadratic_game", "rounds=10000000", "dtype=float64")


@dataclass(frozen=True)
class Loss:
    """The failure of a rank; `transport` is that of the vectors."""

    timeout: int
    signal: str
    victim: int
    starter: str = "srun"
    transport: str = "sockets"

    def __str__(self) -> str:
        return f"{self.signal}-rank{self.victim}-{self.starter}-{self.transport}-{self.timeout}s"


LOSSES = [
    Loss(60, "SIGSTOP", 2),
    Loss(5, "SIGKILL", 2),
    Loss(60, "SIGKILL", 2),
    Loss(60, "SIGKILL", 0),  # rank 0 hosts the store
    Loss(60, "SIGKILL", 1, transport="memory"),
    Loss(5, "SIGKILL", 3, starter="launcher"),
    Loss(60, "SIGKILL", 3, starter="launcher"),
    Loss(5, "SIGSTOP", 2),
    Loss(5, "SIGSTOP", 1, transport="memory"),
    Loss(5, "SIGSTOP", 1, starter="launcher"),
]


@dataclass
class Outcome:
    """Seconds until the last rank exited, exit codes, and output other than progress."""

    seconds: float
    codes: set[int]
    messages: list[str]


def start(loss: Loss, folder: Path) -> list[subprocess.Popen[bytes]]:
    """Start the ranks as srun does, or one launcher."""
    memory = f"communicator.shared_memory={loss.transport == 'memory'}"
    run = (f"run.dir={folder / 'run'}", f"communicator.timeout={loss.timeout}", memory)
    fedsys = [sys.executable, "-m", "fedsys", *SETTINGS, "checkpoint.every=100", *run]
    if loss.starter == "launcher":
        options = ["--standalone", f"--nproc-per-node={RANKS}"]
        fedsys[2:3] = ["fedsys.launch", *options, "--"]
        places = [environment()]
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
        numbers = [(rank, rank, RANKS, RANKS, port) for rank in range(RANKS)]
        here = environment() | {"MASTER_ADDR": "127.0.0.1"}
        places = [here | dict(zip(names, map(str, values), strict=True)) for values in numbers]
    processes = []
    for number, variables in enumerate(places):
        with (folder / f"{number}.out").open("wb") as out:
            processes.append(subprocess.Popen(fedsys, env=variables, stdout=out, stderr=out))
    return processes


def lose(loss: Loss, folder: Path) -> Outcome:
    """Disturb a run and wait until all ranks except the victim have exited."""
    started = start(loss, folder)
    try:
        wait_until("a checkpoint", lambda: newest_checkpoint(folder / "run") > "", PATIENCE)
        launcher = started[0].pid
        is_launched = loss.starter == "launcher"
        ranks = children(launcher) if is_launched else [process.pid for process in started]
        victim = ranks.pop(loss.victim)
        os.kill(victim, signal.Signals[loss.signal])
        begin = time.monotonic()
        others = [process for process in started if process.pid != victim]
        if is_launched:
            wait_until("the end", lambda: not {*ranks} & {*children(launcher)}, PATIENCE)
            seconds = time.monotonic() - begin
        codes = {process.wait(PATIENCE) for process in others}
        if not is_launched:
            seconds = time.monotonic() - begin
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
    lines = [line for out in folder.glob("*.out") for line in out.read_text().splitlines()]
    progress = ("local_sgda on", "round ")
    return Outcome(seconds, codes, [line for line in lines if not line.startswith(progress)])


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[Loss, Outcome]:
    """Run three trials at a time; most of the time they wait."""
    folders = [tmp_path_factory.mktemp(str(loss)) for loss in LOSSES]
    with ThreadPoolExecutor(3) as pool:
        return dict(zip(LOSSES, pool.map(lose, LOSSES, folders), strict=True))


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_when_a_rank_is_lost_the_others_exit_within_the_timeout_with_one_line(
    outcomes: dict[Loss, Outcome], loss: Loss, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = outcomes[loss]
    with capsys.disabled():
        print(f"\n{loss}: all others exited after {outcome.seconds:.1f} s")
    assert outcome.codes == {1}, outcome.messages
    assert outcome.seconds < loss.timeout + GRACE
    (line,) = outcome.messages
    launcher_reports = (loss.starter, loss.signal) == ("launcher", "SIGKILL")
    ending = (
        "was ended by SIGKILL" if launcher_reports else "is lost: it died, hangs or was cut off ("
    )
    assert line.startswith(f"fedsys: rank {loss.victim} ({socket.gethostname()}) {ending}")
