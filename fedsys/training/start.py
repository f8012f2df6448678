"""The title of a run, and the time that its start took."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from fedsys.core.placement import Placement


def title(
    choices: Mapping[str, str], placement: Placement, backend: str, device: object, note: str
) -> str:
    """Return what is run and where; `note` describes the partition of the data."""
    where = f"on {placement.ranks} ranks by {backend}"
    lines = [
        f"{choices['algorithm']} on {choices['problem']}: "
        f"{_count(placement.clients, 'client')} "
        f"{where if placement.ranks > 1 else 'in one process'}, {device}, "
        f"{_count(torch.get_num_threads(), 'thread')} each"
    ]
    if placement.ranks > torch.cuda.device_count() > 0 and backend == "gloo":
        lines.append("more ranks than GPUs: ranks share the GPUs and communicate through gloo")
    return "\n".join([*lines, note] if note else lines)


def seconds_since_start() -> float:
    """Return the seconds since the kernel started this process; NaN outside of Linux."""
    if not sys.platform.startswith("linux"):
        return float("nan")
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started


def _count(number: int, what: str) -> str:
    """Return a number with a noun: 1 client, 2 clients."""
    return f"{number} {what}{'' if number == 1 else 's'}"
