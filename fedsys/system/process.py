"""Settings of the whole process that make runs faster and quieter: `fedsys.tune_process`.

Importing fedsys changes none of them. The commands (`fedsys`, `fedsys-launch`, `fedsys-reproduce`)
call `tune_process` before they import torch. This module imports nothing heavy.
"""

from __future__ import annotations

import os
import sys

VARIABLES = {
    # torch reads it at its first large allocation. The rows of thousands of clients take hundreds
    # of megabytes in every step; with pages of 4 kB the kernel needs twice the time of the step.
    "THP_MEM_ALLOC_ENABLE": "1",
    # torch reads it when it is loaded. When a rank ends, torch's store would print a C++ stack on
    # every other rank; fedsys prints one line that names the lost rank.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""Environment variables of torch that `tune_process` sets where the user has not."""

_is_tuned = False


def tune_process() -> list[str]:
    """Tune this process for training: huge pages, quiet torch logs, reuse of freed memory.

    Call it before torch is imported. It sets the environment variables `VARIABLES` unless they are
    set already, and lets runs tell the C library to keep freed memory (see
    `fedsys.system.memory.keep_freed_memory`). Results do not depend on it; steps on many clients
    take up to twice as long without it.

    Returns:
        One line for each setting that comes too late because torch is imported already.
    """
    global _is_tuned
    _is_tuned = True
    too_late = []
    for name, value in VARIABLES.items():
        if name in os.environ:
            continue
        os.environ[name] = value
        if "torch" in sys.modules:
            too_late.append(f"{name}={value} may have no effect: torch is imported already")
    return too_late


def is_tuned() -> bool:
    """Return whether `tune_process` was called in this process."""
    return _is_tuned
