"""The machine and the commit that produced a result."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

import torch

_CODE = ("fedsys", "conf", "papers/*/entries.yaml")


@cache
def version() -> str:
    """Return the version of the installed package."""
    try:
        return installed_version("fedsys")
    except PackageNotFoundError:
        return "unknown"


@cache
def commit() -> str:
    """Return the commit of this code, with "+" for uncommitted changes, or the package version."""
    repository = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != repository:
            return version()
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *_CODE)
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return version()


@cache
def machine() -> str:
    """Describe cores, processor, GPUs and the version of torch in one line."""
    gpus = torch.cuda.device_count()
    gpu = f", {gpus} x {torch.cuda.get_device_name(0)}" if gpus else ""
    cpu = f"{cores()} core{'' if cores() == 1 else 's'} of {_processor()}"
    return f"{cpu}{gpu}, torch {torch.__version__.split('+')[0]}"


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def today() -> str:
    """Return the current date in UTC."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.machine()
