"""End a rank with the launcher that started it, and tell whether that launcher is stopped.

This module imports nothing heavy: it runs before torch is imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from time import sleep

LAUNCHER = "FEDSYS_LAUNCHER"
"""The environment variable with the process id of `fedsys.launch`, which sets it for its ranks."""

_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_LOOKS = 0.5
_EXIT_CODE = 1
_is_bound = False


def end_with_launcher(environment: Mapping[str, str] = os.environ) -> None:
    """End this process when torchrun or the SLURM step that started it dies; else do nothing.

    Ranks of torchrun are killed by the kernel. It sends the signal when the thread that started
    them ends, which is the main thread of torchrun; slurmstepd may use another, so its tasks, and
    ranks on systems other than Linux, look for their parent twice a second instead.
    """
    global _is_bound
    if _is_bound or not (_is_torchrun(environment) or _is_slurm_task(environment)):
        return
    _is_bound = True
    parent = os.getppid()
    if not (_is_torchrun(environment) and _ask_kernel()):
        Thread(target=_watch, args=(parent,), daemon=True).start()
    # The launcher may have died before; its process id is then all that is left of it.
    launcher = int(environment.get(LAUNCHER, parent))
    if os.getppid() != parent or not _is_alive(launcher):
        os._exit(_EXIT_CODE)


def launcher_is_stopped(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun was stopped by a signal (Ctrl-Z, SIGSTOP) or by a debugger."""
    return _is_torchrun(environment) and _state(os.getppid()) in ("T", "t")


def _is_torchrun(environment: Mapping[str, str]) -> bool:
    return "TORCHELASTIC_RUN_ID" in environment


def _is_slurm_task(environment: Mapping[str, str]) -> bool:
    return int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1


def _ask_kernel() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    result: int = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return result == 0


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(_EXIT_CODE)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _state(process) != "Z"


def _state(process: int) -> str:
    """Return the state letter of a process, or nothing where the system does not tell it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
