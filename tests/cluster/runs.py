"""The run that every cluster test repeats, and the comparison with its reference."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file

from cluster.hosts import Hosts

REPOSITORY = Path(__file__).resolve().parents[2]

PATIENCE = 600.0
"""Timeout in seconds for operations that take a few seconds on an idle machine."""

SETTINGS = (
    "algorithm=local_sgda",
    "problem=quadratic_game",
    "clients=4",
    "rounds=400",
    "dtype=float64",
    "seed=7",
    "evaluate_every=100",
    "checkpoint.every=40",
)
"""A run with random draws in every step, long enough for a failure in the middle."""


def environment() -> dict[str, str]:
    """Return the environment of the launchers: this Python first in PATH, and this repository."""
    python, before = Path(sys.executable).parent, os.environ.get("PATH", "")
    return {
        **os.environ,
        "PATH": f"{python}:{before}",
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }


def run_in_one_process(folder: Path, *settings: str) -> None:
    """Run all clients in one plain process, without torchrun and network."""
    command = [sys.executable, "-m", "fedsys", *settings, f"run.dir={folder}"]
    done = subprocess.run(
        command, cwd=folder.parent, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def start_torchrun(
    hosts: Hosts, name: str, folder: Path, variables: dict[str, str], *settings: str
) -> subprocess.Popen[bytes]:
    """Start launch/torchrun.sh on a host; it appends to the log of the host beside `folder`."""
    script = REPOSITORY / "launch" / "torchrun.sh"
    with log_of(folder, name).open("ab") as log:
        return subprocess.Popen(
            hosts.on(name, str(script), *SETTINGS, f"run.dir={folder}", *settings),
            env=environment() | variables,
            cwd=folder.parent,
            stdout=log,
            stderr=log,
        )


def log_of(folder: Path, name: str) -> Path:
    """Return the log of the launcher of a host."""
    return folder.parent / f"{name}.out"


def assert_same_variables(folder: Path, reference: Path) -> None:
    """Compare the final variables of two runs by name, to 1e-12."""
    found = load_file(folder / "final.safetensors")
    expected = load_file(reference / "final.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.dtype == torch.float64
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


def wait_until(event: str, has_happened: Callable[[], bool], seconds: float) -> None:
    """Poll for an event; raise TimeoutError with its description after some seconds."""
    deadline = time.monotonic() + seconds
    while not has_happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {event}")
        time.sleep(0.05)


def ranks_of(name: str) -> list[int]:
    """Return the ranks on this machine with this word in their command line."""

    def is_one(process: Path) -> bool:
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:  # the process has exited
            return False
        return b"-m\0fedsys\0" in command and name.encode() in command

    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if is_one(process)]


def children(pid: int) -> list[int]:
    """Return the live children of a process, in the order of their start."""
    not_zombies = ["--runstates", "D,R,S,T,t"]
    done = subprocess.run(["pgrep", *not_zombies, "-P", str(pid)], capture_output=True, text=True)
    return sorted(map(int, done.stdout.split()))


def newest_checkpoint(folder: Path) -> str:
    """Return the name of the newest checkpoint, or an empty string."""
    return max((path.name for path in folder.glob("checkpoints/step-*")), default="")


def freeze_after_checkpoint(folder: Path, before: str = "") -> list[int]:
    """Stop one rank after the next checkpoint, so that all others wait; return its process id."""
    wait_until(
        f"a checkpoint in {folder} after {before or 'the start'}",
        lambda: newest_checkpoint(folder) > before,
        PATIENCE,
    )
    frozen = ranks_of(folder.name)[:1]
    assert frozen, "the run ended before a rank could be stopped"
    os.kill(frozen[0], signal.SIGSTOP)
    return frozen


def thaw(frozen: list[int]) -> None:
    """Continue stopped processes that still exist."""
    for process in frozen:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
