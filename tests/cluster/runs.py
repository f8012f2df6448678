"""The one run that every cluster repeats, and what it must end with."""

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

REPOSITORY = Path(__file__).resolve().parents[2]

PATIENCE = 600.0
"""Seconds until something that takes a few is taken for stuck; the machine may be a busy one."""

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
"""Random in every step, and long enough to be disturbed."""


def environment() -> dict[str, str]:
    """With this Python first, and this repository: what the launchers look for."""
    python, before = Path(sys.executable).parent, os.environ.get("PATH", "")
    return {
        **os.environ,
        "PATH": f"{python}:{before}",
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }


def run_in_one_process(folder: Path, *settings: str) -> None:
    """All clients in a plain process: no torchrun, no network."""
    command = [sys.executable, "-m", "fedsys", *settings, f"run.dir={folder}"]
    done = subprocess.run(
        command, cwd=folder.parent, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def assert_same_variables(folder: Path, reference: Path) -> None:
    """To 1e-12, by name."""
    found = load_file(folder / "final.safetensors")
    expected = load_file(reference / "final.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.dtype == torch.float64
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


def wait_until(what: str, is_so: Callable[[], bool], seconds: float) -> None:
    """Look often; give up with a sentence."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


def ranks_of(name: str) -> list[int]:
    """The processes of this machine that are ranks of a run with this word in their command."""

    def is_one(process: Path) -> bool:
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            return False
        return b"-m\0fedsys\0" in command and name.encode() in command

    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if is_one(process)]


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended, in this order."""
    not_zombies = ["--runstates", "D,R,S,T,t"]
    done = subprocess.run(["pgrep", *not_zombies, "-P", str(pid)], capture_output=True, text=True)
    return sorted(map(int, done.stdout.split()))


def newest_checkpoint(folder: Path) -> str:
    """Its name, or nothing."""
    return max((path.name for path in folder.glob("checkpoints/step-*")), default="")


def freeze_after_checkpoint(folder: Path, before: str = "") -> list[int]:
    """Stop a rank once there is a newer checkpoint; however fast, the others wait for it."""
    wait_until(
        f"a checkpoint in {folder} after {before or 'the start'}",
        lambda: newest_checkpoint(folder) > before,
        PATIENCE,
    )
    frozen = ranks_of(folder.name)[:1]
    assert frozen, "the run ended before it could be disturbed"
    os.kill(frozen[0], signal.SIGSTOP)
    return frozen


def thaw(frozen: list[int]) -> None:
    """Let it go on, if it is still there."""
    for process in frozen:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
