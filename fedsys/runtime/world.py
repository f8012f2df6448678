"""The processes of a run: who they are, how they meet, and what each computes on."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fedsys.communication import LocalTransport, Transport, wire
from fedsys.communication.transport import first_line
from fedsys.errors import FedsysError, InputError, LostRankError
from fedsys.runtime import slurm
from fedsys.runtime.roll_call import RollCall

Result = TypeVar("Result")

_stores: dict[tuple[str, str], Any] = {}
"""By address: a script may run several times, and its ranks leave a run at different moments."""


@dataclass
class World:
    """The ranks that run together, from the variables that torchrun (or SLURM) sets."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    transport: Transport = field(default_factory=LocalTransport)
    timeout: float = inf
    """Seconds until a silent rank counts as lost."""
    _store: Any = None  # a torch.distributed store
    _meetings: int = 0
    _hosts: list[str] = field(default_factory=list)
    _roll_call: RollCall | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> World:
        """One process unless RANK and WORLD_SIZE, or SLURM's names for them, say otherwise."""
        environment = {**environment, **slurm.variables(environment)}

        def number(name: str, default: int) -> int:
            return int(environment.get(name, default))

        ranks = number("WORLD_SIZE", 1)
        rank = number("RANK", 0)
        return cls(rank, ranks, number("LOCAL_RANK", rank), number("LOCAL_WORLD_SIZE", ranks))

    @property
    def store(self) -> Any:
        """Where the ranks leave notes for each other; open before and after any process group."""
        assert self.ranks > 1
        if self._store is None:
            os.environ.update(slurm.variables(os.environ))  # torch reads what torchrun would set
            address = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
            if address not in _stores:
                _stores[address], _, _ = next(
                    dist.rendezvous("env://", timeout=timedelta(minutes=5))
                )
            # Ranks that were restarted may find the store of those before them.
            attempts = ("FEDSYS_ATTEMPT", "TORCHELASTIC_RESTART_COUNT")
            attempt = next((os.environ[name] for name in attempts if name in os.environ), "0")
            self._store = dist.PrefixStore(f"attempt {attempt}", _stores[address])
        return self._store

    @property
    def is_restart(self) -> bool:
        """Whether a launcher started these ranks in place of others that were lost."""
        attempt = os.environ.get("FEDSYS_ATTEMPT", "0")
        return attempt != "0" or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"

    @property
    def meetings(self) -> int:
        """Which of this process' runs this is; the same on all ranks."""
        return self._meetings

    def connect(
        self, backend: str, timeout: float, startup_timeout: float, shared_memory: bool = True
    ) -> None:
        """Form the process group of one run."""
        if self.ranks == 1:
            return
        # Counted in the store, which outlives the worlds of a script that runs several times.
        self._meetings = self.store.add(f"meetings of rank {self.rank}", 1)
        store = dist.PrefixStore(f"meeting {self._meetings}", self.store)
        store.set_timeout(timedelta(seconds=startup_timeout))
        try:
            dist.init_process_group(
                # With nccl, what lives on the host (coins, objects) still travels by gloo.
                "gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl",
                store=store,
                rank=self.rank,
                world_size=self.ranks,
                timeout=timedelta(seconds=timeout),
            )
        except RuntimeError as error:
            raise LostRankError(f"the ranks did not meet: {first_line(error)}") from error
        self.timeout = timeout
        self.transport = wire(shared_memory and self.local_ranks == self.ranks)

    def disconnect(self) -> None:
        """Leave the process group."""
        self.transport.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        self.transport = LocalTransport()

    def share(self, key: str, value: Callable[[], str]) -> str:
        """Rank 0's value, on every rank; works before the process group exists."""
        if self.ranks == 1:
            return value()
        if self.rank == 0:
            self.store.set(key, value())
        return str(self.store.get(key), "utf-8")

    def together(self, work: Callable[[], Result]) -> Result:
        """Do the same on all ranks; if it fails on any, it fails on all, and one rank says why."""
        result: Result | None = None
        mine: FedsysError | None = None
        try:
            result = work()
        except LostRankError:
            raise  # there is one less to meet
        except FedsysError as error:
            mine = error
        failures = self.transport.all_gather_object(
            None if mine is None else (mine.message, mine.exit_code)
        )
        for rank, failure in enumerate(failures):
            if failure is not None:
                kind = InputError if failure[1] == InputError.exit_code else FedsysError
                raise kind(failure[0], reporter=rank) from mine
        assert mine is None
        return result  # type: ignore[return-value]

    def last_words(self, error: FedsysError, say: Callable[[str], None]) -> None:
        """One rank says what happened; the others wait for it, lest the launcher stops it first."""
        if self.ranks == 1:
            say(error.message)
            return
        if isinstance(error, LostRankError):
            self.roll_call.hold(error.message, say)
            return
        if self.rank == error.reporter:
            say(error.message)
        key = f"said {self._meetings}"
        with suppress(Exception):
            if self.rank == error.reporter:
                self.store.set(key, "")
            else:
                self.store.wait([key], timedelta(seconds=10))

    @property
    def roll_call(self) -> RollCall:
        """How the ranks find out which of them was lost."""
        if self._roll_call is None:
            hosts = self._hosts or ["host unknown"] * self.ranks
            self._roll_call = RollCall(self.rank, hosts, self.store, lambda: self.transport.waits)
        return self._roll_call

    def exchange_hosts(self) -> None:
        """Learn the name of every rank's host, for the line that names one that is lost."""
        self._hosts = self.transport.all_gather_object(socket.gethostname())


def choose_backend(wanted: str, local_ranks: int, gpus: int) -> str:
    """nccl if every rank of the host has a GPU of its own, else gloo."""
    if wanted == "nccl" and gpus < local_ranks:
        raise InputError(
            f"communicator.backend=nccl needs a GPU for each of the {local_ranks} ranks of this "
            f"host, which has {gpus}; use communicator.backend=gloo"
        )
    return "nccl" if gpus >= local_ranks and wanted != "gloo" else "gloo"


def choose_device(wanted: str, local_rank: int, gpus: int) -> torch.device:
    """cuda:LOCAL_RANK where there is one (ranks share too few GPUs), else the CPU."""
    if wanted == "auto":
        return torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise InputError(f"device must be auto, cpu, cuda or cuda:N, got {wanted!r}") from None
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise InputError(f"device={wanted} is not there: this host has {gpus} GPUs; use device=cpu")
    if wanted == "cuda":
        return torch.device("cuda", local_rank % gpus)
    return device


def set_threads(local_ranks: int) -> None:
    """Cores / ranks of this host, unless the user set OMP_NUM_THREADS.

    torchrun sets it to 1 on its own account; its own environment tells whether the user did.
    """
    if "OMP_NUM_THREADS" in os.environ and not _torchrun_chose_the_threads():
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    torch.set_num_threads(max(1, (cores or 1) // local_ranks))


def _torchrun_chose_the_threads() -> bool:
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    try:
        parent = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return False
    return not any(entry.startswith(b"OMP_NUM_THREADS=") for entry in parent.split(b"\0"))
