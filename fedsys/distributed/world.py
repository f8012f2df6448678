"""The processes of a run: their numbers, their rendezvous, and their devices."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import IPv4Address
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fedsys.communication import LocalTransport, Transport, choose_transport
from fedsys.communication.transport.torch_distributed import first_line
from fedsys.communication.values import decode, encode, list_of, text
from fedsys.core.errors import FedsysError, InputError, LostRankError, print_error, unforeseen
from fedsys.distributed import network, parent, slurm, stores, torch_internals
from fedsys.distributed.failure_detector import FailureDetector
from fedsys.distributed.gloo_guard import guarded
from fedsys.distributed.peers import WorldPeers, exchange

Result = TypeVar("Result")

_PATIENCE = timedelta(minutes=5)
_stores: dict[tuple[str, str], stores.Store] = {}
"""Stores by address. A script may run several times, and its ranks end a run at different times."""


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
    _store_error: FedsysError | None = None
    _meetings: int = 0
    _hosts: list[str] = field(default_factory=list)
    _failure_detector: FailureDetector | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> World:
        """Return the world of RANK and WORLD_SIZE or SLURM's variables; else a single process."""
        environment = {**environment, **slurm.variables(environment)}

        def number(name: str, default: int) -> int:
            return int(environment.get(name, default))

        ranks = number("WORLD_SIZE", 1)
        rank = number("RANK", 0)
        return cls(rank, ranks, number("LOCAL_RANK", rank), number("LOCAL_WORLD_SIZE", ranks))

    @property
    def store(self) -> Any:
        """The key-value store of the ranks; it is open before and after any process group."""
        assert self.ranks > 1
        if self._store is None:
            os.environ.update(slurm.variables(os.environ))  # torch reads what torchrun would set
            address = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
            if self._store_error is not None:
                raise self._store_error  # the reporting rank need not wait for the store again
            if address not in _stores:
                try:
                    _stores[address] = stores.from_environment(self.rank, self.ranks, _PATIENCE)
                except FedsysError as error:
                    self._store_error = error
                    raise
            # Ranks that were restarted may find the store of those before them.
            attempts = ("FEDSYS_ATTEMPT", "TORCHELASTIC_RESTART_COUNT")
            attempt = next((os.environ[name] for name in attempts if name in os.environ), "0")
            self._store = dist.PrefixStore(f"attempt {attempt}", _stores[address].store)
        return self._store

    @property
    def peers(self) -> WorldPeers:
        """The exchanges for work that runs on all ranks."""
        return WorldPeers(lambda: self.transport)

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
        if self.rank == 0 and self._meetings == 1:
            _warn_of_untested_torch()
        store = dist.PrefixStore(f"meeting {self._meetings}", self.store)
        store.set_timeout(timedelta(seconds=startup_timeout))
        try:
            with network.restricted_to(self._address()), guarded(self._peers(store)):
                dist.init_process_group(
                    # With nccl, what lives on the host (coins, values) still travels by gloo.
                    "gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl",
                    store=store,
                    rank=self.rank,
                    world_size=self.ranks,
                    timeout=timedelta(seconds=timeout),
                )
        except RuntimeError as error:
            raise LostRankError(f"the ranks did not meet: {first_line(error)}") from error
        self.timeout = timeout
        self.transport = choose_transport(shared_memory and self.local_ranks == self.ranks)

    def _address(self) -> str | None:
        """The only address where this rank listens; None leaves it to the user's variables."""
        if stores.is_one_host(self.ranks):
            return network.LOOPBACK
        host = os.environ.get("MASTER_ADDR", network.LOOPBACK)
        is_tunnel = network.is_loopback(network.resolve(host))  # the launcher has set the interface
        return None if is_tunnel else network.own_address(None, host)

    def _peers(self, store: Any) -> list[str] | None:
        """Return all addresses of all hosts; None on a single host."""
        if stores.is_one_host(self.ranks):
            return None
        store.set(f"addresses {self.rank}", encode(network.own_addresses()))
        keys = [f"addresses {rank}" for rank in range(self.ranks)]
        found = enumerate(store.multi_get(keys))
        lists = [decode(one, list_of(_parse_address), rank) for rank, one in found]
        return sorted({address for addresses in lists for address in addresses})

    def disconnect(self) -> None:
        """Leave the process group."""
        self.transport.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        self.transport = LocalTransport()

    def from_first_rank(self, key: str, value: Callable[[], str]) -> str:
        """Rank 0's value, on every rank; works before the process group exists."""
        if self.ranks == 1:
            return value()
        if self.rank == 0:
            self.store.set(key, value())
        return str(self.store.get(key), "utf-8")

    def on_all_ranks(self, work: Callable[[], Result]) -> Result:
        """Run `work` on all ranks; if it fails on one, raise its error on all.

        `work` may exchange values by `WorldPeers`, whose exchanges meet a rank that has failed.
        """
        result: Result | None = None
        mine: FedsysError | None = None
        try:
            result = work()
        except LostRankError:
            raise  # there is one less to meet
        except FedsysError as error:
            if error.is_on_all_ranks:
                raise
            mine = error
        except Exception as error:
            if self.ranks == 1:
                raise
            mine = unforeseen(error)
        exchange(self.transport, None, lambda value: None, mine)
        assert mine is None
        return result  # type: ignore[return-value]

    def report_failure(self, error: FedsysError, print_line: Callable[[str], None]) -> None:
        """Print the error on one rank; the others wait, so that the launcher does not stop it."""
        if self.ranks == 1:
            print_line(error.message)
            return
        if isinstance(error, LostRankError):
            self.failure_detector.report_lost_rank(error.message, print_line)
            return
        if self.rank == error.reporter:
            print_line(error.message)
        key = f"said {self._meetings}"
        with suppress(Exception):
            if self.rank == error.reporter:
                self.store.set(key, "")
            else:
                self.store.wait([key], timedelta(seconds=10))

    @property
    def failure_detector(self) -> FailureDetector:
        """The detector that finds out which rank was lost."""
        if self._failure_detector is None:
            hosts = self._hosts or ["host unknown"] * self.ranks
            self._failure_detector = FailureDetector(
                self.rank, hosts, self.store, lambda: self.transport.waits
            )
        return self._failure_detector

    def exchange_hosts(self) -> None:
        """Gather the host name of every rank, for the message about a lost rank."""
        self._hosts = self.transport.all_gather_values(socket.gethostname(), text)


def _warn_of_untested_torch() -> None:
    """Print what is lost with this version of torch, unless the launcher has."""
    if not torch_internals.is_tested() and parent.LAUNCHER not in os.environ:
        loss = "gloo's ports accept connections from other hosts"
        print_error(torch_internals.untested_message(loss))


def _parse_address(value: Any) -> str:
    return str(IPv4Address(text(value)))


def choose_backend(wanted: str, local_ranks: int, gpus: int) -> str:
    """Return nccl if every rank of the host has a GPU of its own, else gloo."""
    if wanted == "nccl" and gpus < local_ranks:
        raise InputError(
            f"communicator.backend=nccl needs a GPU for each of the {local_ranks} ranks of this "
            f"host, which has {gpus}; use communicator.backend=gloo"
        )
    return "nccl" if gpus >= local_ranks and wanted != "gloo" else "gloo"


def choose_device(wanted: str, local_rank: int, gpus: int) -> torch.device:
    """Return cuda:LOCAL_RANK (modulo the number of GPUs) if there are GPUs, else the CPU."""
    if wanted == "auto":
        return torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    device: torch.device | None
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or str(device).startswith("cpu:"):
        raise InputError(f"device must be auto, cpu, cuda or cuda:N, got {wanted!r}")
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise InputError(f"device={wanted} is not there: this host has {gpus} GPUs; use device=cpu")
    if wanted == "cuda":
        return torch.device("cuda", local_rank % gpus)
    return device


def set_threads(local_ranks: int) -> None:
    """Set the number of threads to cores / ranks of this host, unless OMP_NUM_THREADS is set.

    torchrun sets it to 1 by itself; the environment of the torchrun process shows if the user did.
    """
    if "OMP_NUM_THREADS" in os.environ and not _torchrun_chose_the_threads():
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    torch.set_num_threads(max(1, (cores or 1) // local_ranks))


def _torchrun_chose_the_threads() -> bool:
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    try:
        environment = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return False
    return not any(entry.startswith(b"OMP_NUM_THREADS=") for entry in environment.split(b"\0"))
