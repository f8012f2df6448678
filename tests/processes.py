"""Real processes that play the ranks of a world; started once, for many tests.

A job is a module-level function of a test module: it is sent to the processes by its name, runs on
each of them with the environment that torchrun would set, and what it returns comes back by rank.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed import TCPStore

from fedsys.cli import main
from fedsys.runtime.world import World

COLLECTIVE_TIMEOUT = 30.0


def forks() -> ForkServerContext:
    """Forks of a server that has imported all they need: they cost milliseconds, not seconds.

    (The server knows the folder where it is started, and not pytest's path.)
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "fedsys", "pytest", "tests.preload"])
    return context


class Ranks:
    """Processes by number; the first n of them make a world of n ranks."""

    def __init__(self) -> None:
        self._context = forks()
        self._members: list[tuple[Any, Connection]] = []
        self._stores: dict[int, TCPStore] = {}

    def __call__(self, ranks: int, job: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a job on all ranks of a new world; its results by rank."""
        answers = self.attempt(ranks, job, *args)
        for rank, (_, trace) in enumerate(answers):
            assert not trace, f"rank {rank} of {ranks}: {trace}"
        return [result for result, _ in answers]

    def attempt(
        self, ranks: int, job: Callable[..., Any], *args: Any, patience: float = 100.0
    ) -> list[tuple[Any, str]]:
        """The same, with a trace for each rank that raised, and for one that was killed."""
        if ranks not in self._stores:
            self._stores[ranks] = _store()
        port = self._stores[ranks].port
        while len(self._members) < ranks:
            self._members.append(self._start())
        team = self._members[:ranks]
        for rank, (_, connection) in enumerate(team):
            connection.send_bytes(pickle.dumps((_environment(rank, ranks, port), job, args)))
        answers = [self._receive(member, patience) for member in team]
        self._members = [member for member in self._members if member[0].is_alive()]
        if any(trace for _, trace in answers):
            del self._stores[ranks]  # where some did not come to the meeting
        return answers

    def close(self) -> None:
        """End all processes."""
        for process, connection in self._members:
            connection.close()
            process.join(5)
            if process.is_alive():
                process.kill()
        self._members = []

    def _start(self) -> tuple[Any, Connection]:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(there,), daemon=True)
        process.start()
        there.close()
        return process, here

    @staticmethod
    def _receive(member: tuple[Any, Connection], patience: float) -> tuple[Any, str]:
        process, connection = member
        try:
            if connection.poll(patience):
                return pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            process.join()
            return None, f"the process ended with code {process.exitcode}"
        process.kill()
        process.join()
        return None, f"no answer within {patience} seconds"


@contextmanager
def connected(timeout: float = COLLECTIVE_TIMEOUT, shared_memory: bool = True) -> Iterator[World]:
    """The world of this rank, by gloo."""
    world = World.from_environment()
    world.connect("gloo", timeout, timeout, shared_memory)
    try:
        yield world
    finally:
        world.disconnect()


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code, the largest of its ranks', and what they printed."""

    returncode: int
    stdout: str
    stderr: str


def launched(ranks: int, *arguments: str) -> list[str]:
    """`fedsys ...` by its launcher; takes seconds, so only where that has a part in the outcome."""
    launcher = [sys.executable, "-m", "fedsys.launch", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, *arguments]


def children(pid: int) -> list[int]:
    """The ranks that a launcher has started, in order."""
    text = subprocess.run(
        ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True
    ).stdout
    return sorted(int(line) for line in text.split())


def command(folder: Path, ranks: int, *arguments: str) -> Done:
    """`fedsys ...` in a folder, on ranks as torchrun starts them, without the launcher."""
    store = _store()
    return _commands(
        folder, [_environment(rank, ranks, store.port) for rank in range(ranks)], arguments
    )


def commands_at_once(folder: Path, count: int, *arguments: str) -> Done:
    """The same command several times, each in a process that knows of no other."""
    return _commands(folder, [_environment(0, 1, 0)] * count, arguments)


def start_command(
    folder: Path, environment: dict[str, str], arguments: tuple[str, ...], printed: Path
) -> BaseProcess:
    """`fedsys ...` as one rank, to be waited for or killed; what it prints goes to a file."""
    process = forks().Process(
        target=_command, args=(folder, environment, arguments, [printed, printed])
    )
    process.start()
    return process


def environments(ranks: int) -> list[dict[str, str]]:
    """Of ranks that meet at a store of their own, which lasts as long as this process."""
    _kept.append(_store())
    return [_environment(rank, ranks, _kept[-1].port) for rank in range(ranks)]


_kept: list[TCPStore] = []


def _commands(folder: Path, environments: list[dict[str, str]], arguments: tuple[str, ...]) -> Done:
    with TemporaryDirectory() as printed:
        paths = [Path(printed) / name for name in ("stdout", "stderr")]
        processes = [
            forks().Process(target=_command, args=(folder, environment, arguments, paths))
            for environment in environments
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(100)
            process.kill()
            process.join()
        codes = [process.exitcode for process in processes]
        assert None not in codes
        assert min(codes) >= 0, f"killed: {codes}"
        return Done(max(codes), *(path.read_text() for path in paths))


def _command(
    folder: Path, environment: dict[str, str], arguments: tuple[str, ...], paths: list[Path]
) -> None:
    os.environ.update(environment)
    os.chdir(folder)
    for path, stream in zip(paths, (1, 2), strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), stream)
    sys.argv = ["fedsys", *arguments]
    main()


def _store() -> TCPStore:
    """Where the ranks of a world meet; like torchrun's agent, this process keeps it."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }


def _serve(connection: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        try:
            environment, job, args = pickle.loads(message)
            os.environ.update(environment)
            answer = (job(*args), "")
        except BaseException:
            answer = (None, traceback.format_exc())
        connection.send_bytes(pickle.dumps(answer))
