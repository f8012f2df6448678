"""Real processes as ranks of a world, started once for many tests.

A job is a module-level function of a test module. It is sent to the processes by name and runs on
each of them with the environment that torchrun would set; its results are returned by rank.
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

from fedsys.cli.main import main
from fedsys.distributed.world import World

COLLECTIVE_TIMEOUT = 30.0


def forks() -> ForkServerContext:
    """Return a fork server that has imported what ranks need; a fork takes milliseconds.

    The server resolves modules from the working directory, not from the path of pytest.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "fedsys", "pytest", "tests.support.preload"])
    return context


class Ranks:
    """A pool of processes; the first n of them form a world of n ranks."""

    def __init__(self) -> None:
        self._context = forks()
        self._members: list[tuple[Any, Connection]] = []
        self._stores: dict[int, TCPStore] = {}

    def __call__(self, ranks: int, job: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a job on all ranks of a new world; return the results by rank."""
        answers = self.attempt(ranks, job, *args)
        for rank, (_, trace) in enumerate(answers):
            assert not trace, f"rank {rank} of {ranks}: {trace}"
        return [result for result, _ in answers]

    def attempt(
        self, ranks: int, job: Callable[..., Any], *args: Any, patience: float = 100.0
    ) -> list[tuple[Any, str]]:
        """Run a job; return (result, traceback or "") by rank, also for a rank that was killed."""
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
            del self._stores[ranks]  # some ranks may not have joined the rendezvous
        return answers

    def close(self) -> None:
        """Terminate all processes."""
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
            return None, f"the process exited with code {process.exitcode}"
        process.kill()
        process.join()
        return None, f"no answer within {patience} seconds"


@contextmanager
def connected(timeout: float = COLLECTIVE_TIMEOUT, shared_memory: bool = True) -> Iterator[World]:
    """Connect this rank by gloo; yield its world."""
    world = World.from_environment()
    world.connect("gloo", timeout, timeout, shared_memory)
    try:
        yield world
    finally:
        world.disconnect()


def run_python(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, in one process and one thread."""
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    clean = {name: value for name, value in os.environ.items() if name not in ranks}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**clean, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@dataclass(frozen=True)
class Done:
    """The result of a command: the largest exit code of its ranks, and their output."""

    returncode: int
    stdout: str
    stderr: str


def launched(ranks: int, *arguments: str) -> list[str]:
    """Return the command of `fedsys ...` under the launcher, which takes seconds to start."""
    launcher = [sys.executable, "-m", "fedsys.launch", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, *arguments]


def children(pid: int) -> list[int]:
    """Return the ranks that a launcher has started, in order."""
    text = subprocess.run(
        ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True
    ).stdout
    return sorted(int(line) for line in text.split())


def command(folder: Path, ranks: int, *arguments: str) -> Done:
    """Run `fedsys ...` in a folder, on ranks with torchrun's environment but no launcher."""
    store = _store()
    return _commands(
        folder, [_environment(rank, ranks, store.port) for rank in range(ranks)], arguments
    )


def commands_at_once(folder: Path, count: int, *arguments: str) -> Done:
    """Run the same command several times at once, in independent processes."""
    return _commands(folder, [_environment(0, 1, 0)] * count, arguments)


def start_command(
    folder: Path, environment: dict[str, str], arguments: tuple[str, ...], printed: Path
) -> BaseProcess:
    """Start `fedsys ...` as one rank, with its output in a file; the caller waits or kills."""
    process = forks().Process(
        target=_command, args=(folder, environment, arguments, [printed, printed])
    )
    process.start()
    return process


def environments(ranks: int) -> list[dict[str, str]]:
    """Return the environments of ranks with a new store, which lives as long as this process."""
    _open_stores.append(_store())
    return [_environment(rank, ranks, _open_stores[-1].port) for rank in range(ranks)]


_open_stores: list[TCPStore] = []


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
    """Create the store of a world in this process, as torchrun's agent does."""
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
