"""How the ranks of a run connect: the options, and the choice of the transport."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fedsys.communication.transport.shared_memory import MAX_RANKS, SharedMemoryTransport
from fedsys.communication.transport.torch_distributed import DistributedTransport
from fedsys.core.errors import require

BACKENDS = ("auto", "gloo", "nccl")
_OWNER = "communicator"


@dataclass(frozen=True)
class ConnectionOptions:
    """Options of the connection between the ranks.

    Args:
        timeout: seconds after which a collective gives up on a rank that does not answer.
        startup_timeout: the same for the rendezvous.
        backend: "gloo", "nccl" or "auto" (nccl where every rank of the host has its own GPU).
        shared_memory: whether CPU ranks on one host exchange vectors through shared memory.
    """

    timeout: float = 60.0
    startup_timeout: float = 300.0
    backend: str = "auto"
    shared_memory: bool = True

    def __post_init__(self) -> None:
        for name in ("timeout", "startup_timeout"):
            seconds = getattr(self, name)
            rule = "a positive number of seconds, at most 1e9"
            require(0 < seconds <= 1e9, _OWNER, name, seconds, rule)
        rule = f"one of {', '.join(BACKENDS)}"
        require(self.backend in BACKENDS, _OWNER, "backend", self.backend, rule)


def choose_transport(one_host: bool) -> DistributedTransport:
    """Return the fastest transport on the default process group; all ranks choose the same.

    Args:
        one_host: whether shared memory may be used: all ranks compute on the CPU of one host.
    """
    size = DistributedTransport().size
    if one_host and 1 < size <= MAX_RANKS and hasattr(os, "memfd_create"):
        transport = SharedMemoryTransport()
        if transport.reaches_all:
            return transport
    return DistributedTransport()
