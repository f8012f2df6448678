"""The one run that every cluster repeats, and what it must end with."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

REPOSITORY = Path(__file__).resolve().parents[2]

SETTINGS = (
    "algorithm=local_sgda",
    "problem=quadratic_game",
    "clients=4",
    "rounds=1500",
    "dtype=float64",
    "seed=7",
    "evaluate_every=50",
    "checkpoint.every=100",
    "communicator.timeout=10",
)
"""Long enough to be disturbed, and random in every step."""


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
    """Look twice a second; give up with a sentence."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.5)


def is_under_way(folder: Path) -> bool:
    """Whether there is a checkpoint to go on from, and something left to do."""
    return any(folder.glob("checkpoints/step-*/snapshot.json"))


def has_ended(folder: Path) -> bool:
    """Whether the run has left its results."""
    return (folder / "summary.json").exists()
