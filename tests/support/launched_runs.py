"""Start runs under the launcher, as commands or as forks of a server, and find their processes.

Every process of a run carries a mark in its environment; a fork has the mark as its name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.multiprocessing
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from fedsys import launch
from fedsys.__main__ import main as rank_main
from support.processes import forks

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 300.0
"""Timeout in seconds for operations that take a few seconds on an idle machine."""
MARK = "FEDSYS_KILLS_MARK"


class Run:
    """A job under the launcher, started as a command or as a fork."""

    def __init__(
        self,
        ranks: int,
        settings: tuple[str, ...],
        folder: Path,
        mark: str,
        restarts: int,
        execs: bool = False,
    ) -> None:
        options = ("--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", "--")
        arguments = [*options, *settings, f"run.dir={folder}"]
        place = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", MARK: mark}
        self._said = folder.with_name(f"{folder.name}.said")
        self._process: subprocess.Popen[bytes] | BaseProcess
        if execs:
            with self._said.open("wb") as said:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "fedsys.launch", *arguments],
                    env={**os.environ, **place},
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                )
        else:
            self._process = forks().Process(
                target=launch_forked, args=(arguments, place, self._said)
            )
            self._process.start()

    @property
    def pid(self) -> int:
        """The process id of the launcher."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while the job runs."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll()
        return self._process.exitcode

    def wait(self) -> int | None:
        """Wait for the end of the job and return the exit code; None after PATIENCE seconds."""
        deadline = time.monotonic() + PATIENCE
        while self.code is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.code

    def said(self) -> str:
        """Return the stderr of the launcher and the ranks."""
        return self._said.read_text()


def launch_forked(arguments: list[str], place: dict[str, str], said: Path) -> None:
    """Execute the launcher in this process; its ranks are forks."""
    os.environ.update(place)
    _mark_this_process(place[MARK])
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    # torchrun would rename this process and its forks, and the mark would be lost.
    torch.multiprocessing._set_thread_name = lambda name: None  # type: ignore[attr-defined]
    subprocess_handler.Popen = ForkedPopen  # type: ignore[misc]
    launch.main(arguments)
    sys.exit(0)


class ForkedPopen(subprocess.Popen[Any]):
    """Runs `python -m fedsys ...` as a fork of this process instead of a new interpreter."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        self._child_created = True
        environment = others[5]
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            os.closerange(3, 4096)  # as exec would
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["fedsys", *args[args.index("fedsys") + 1 :]]
            rank_main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        finally:
            os._exit(code)


def _mark_this_process(mark: str) -> None:
    """Set the name of this process, which forks inherit; the kernel keeps 15 characters."""
    Path("/proc/self/comm").write_text(mark)


def ranks_of(launcher: int, mark: str) -> list[int]:
    """Return the live ranks of a launcher."""
    return sorted(pid for pid in marked(mark) if _parent(pid) == launcher)


def marked(mark: str) -> Iterator[int]:
    """Yield the processes with a mark in their environment or as their name, except zombies."""
    word = f"\0{MARK}={mark}\0".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_marked = word in b"\0" + (process / "environ").read_bytes()
            name, _, rest = (process / "stat").read_text().rpartition(")")
            if (is_marked or name.endswith(f"({mark}")) and rest.split()[0] != "Z":
                yield int(process.name)


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
