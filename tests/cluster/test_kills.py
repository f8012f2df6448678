"""kill -9 of any rank at any moment: the launcher starts them again, and the bits are the same.

FEDSYS_KILLS says how many (20). All kills hit one run, at random moments of its start, its rounds
and its checkpoints, which it writes all the time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file

KILLS = int(os.environ.get("FEDSYS_KILLS", "20"))
RANKS = 3
RUNS = ("killed", "whole")
GAME = (
    "algorithm=local_sgda",
    "problem=quadratic_game",
    "problem.dim=50",
    "problem.noise=1",
    "clients=5",
    "dtype=float64",
    "evaluate_every=25",
    "checkpoint.every=2",
)


STANDALONE = ("--standalone", f"--nproc-per-node={RANKS}")


def launched(
    folder: Path, name: str, rounds: int, restarts: int, where: tuple[str, ...] = STANDALONE
) -> subprocess.Popen[str]:
    options = [*where, f"--max-restarts={restarts}"]
    command = [sys.executable, "-m", "fedsys.launch", *options, "--", *GAME]
    return subprocess.Popen(
        [*command, f"rounds={rounds}", f"run.name={name}"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(pid: int) -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return sorted(map(int, done.stdout.split()))


def newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("runs/killed/checkpoints/step-*")), default="")


def wait_for(folder: Path, job: subprocess.Popen[str], before: str) -> None:
    """Until the run has come further than a checkpoint."""
    while newest(folder) <= before:
        assert job.poll() is None, f"ended with {job.returncode}: {job.communicate()[1]}"
        time.sleep(0.02)


@pytest.mark.timeout(7200)
def test_killed_at_random_moments_a_run_ends_bit_for_bit_as_if_undisturbed(tmp_path: Path) -> None:
    dice = Random(7)
    job = launched(tmp_path, "killed", 400 * KILLS, KILLS)
    before, victims = "", []
    while len(victims) < KILLS:
        if dice.random() < 0.75:  # else wherever the ranks are, be it at their start
            wait_for(tmp_path, job, before)
            time.sleep(dice.random() * 0.5)
        else:
            time.sleep(dice.random() * 5)
        before = newest(tmp_path)
        ranks = children(job.pid)
        if len(ranks) == RANKS:
            victim = dice.randrange(RANKS)
            with suppress(ProcessLookupError):
                os.kill(ranks[victim], signal.SIGKILL)
                victims.append(victim)
            while ranks[victim] in children(job.pid):
                time.sleep(0.02)
    assert job.wait(3600) == 0, job.stderr.read() if job.stderr else ""
    assert set(victims) == set(range(RANKS)) or KILLS < 10
    whole = launched(tmp_path, "whole", 400 * KILLS, 0)
    assert whole.wait(3600) == 0
    for name in ("final.safetensors", "checkpoints"):
        ours, theirs = (tmp_path / "runs" / run / name for run in RUNS)
        if ours.is_dir():
            last = max(path.name for path in theirs.glob("step-*"))
            for file in (theirs / last).glob("*.safetensors"):
                assert (ours / last / file.name).read_bytes() == file.read_bytes()
        else:
            assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.timeout(1800)
def test_the_clients_of_a_lost_host_are_hosted_by_those_that_are_left(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = ("--nnodes=1:3", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=elastic")
    meeting += (f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=last_call_timeout=5")
    hosts = [launched(tmp_path, "killed", 3000, 3, meeting) for _ in range(3)]
    wait_for(tmp_path, hosts[0], "")
    # One that does not keep the meeting place: torchrun's is at one host.
    lost = next(host for host in hosts if not listens(host.pid, port))
    ranks = children(lost.pid)
    for process in (lost.pid, *ranks):
        os.kill(process, signal.SIGKILL)
    left = [host for host in hosts if host is not lost]
    assert [host.wait(1200) for host in left] == [0, 0]
    lost.wait()
    whole = launched(tmp_path, "whole", 3000, 0)
    assert whole.wait(600) == 0
    ours, theirs = (load_file(tmp_path / f"runs/{run}/final.safetensors") for run in RUNS)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-12)
    summary = json.loads((tmp_path / "runs/killed/summary.json").read_text())
    assert (summary["clients"], summary["ranks"]) == (5, 2)


def listens(pid: int, port: int) -> bool:
    """Whether the process holds a listening socket at the port."""
    wanted = {
        line.split()[9]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    }
    links = (os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir())
    return any(link == f"socket:[{inode}]" for link in links for inode in wanted)
