"""Time from the command line to the first step against importing torch and hydra."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from benchmarks.measure import Ratio, interleave, warm_up

LIMIT, PAIRS = 2.0, 6
IMPORTS = "import torch, hydra"


def measure() -> Iterator[Ratio]:
    """Yield the ratio of the times of whole processes."""
    warm_up(_fedsys, _imports)
    times = interleave(_fedsys, _imports, lambda pairs: pairs < PAIRS)
    yield Ratio("start-up to the first step", LIMIT, *times)


def _fedsys() -> float:
    """Run the default problem for one round and return the start-up time from its summary."""
    with tempfile.TemporaryDirectory() as folder:
        _python("-m", "fedsys", "clients=4", "rounds=1", f"run.root={folder}", cwd=folder)
        (summary,) = Path(folder).glob("*/summary.json")
        return float(json.loads(summary.read_text())["startup_seconds"])


def _imports() -> float:
    started = perf_counter()
    _python("-c", IMPORTS)
    return perf_counter() - started


def _python(*arguments: str, cwd: str | None = None) -> None:
    command = [sys.executable, *arguments]
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)
