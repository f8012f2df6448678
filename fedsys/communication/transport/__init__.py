"""Transports: collectives over the ranks of a run, with the same verbs and the same numbers."""

from fedsys.communication.transport.base import Transport
from fedsys.communication.transport.connection import ConnectionOptions, choose_transport
from fedsys.communication.transport.local import LocalTransport
from fedsys.communication.transport.shared_memory import SharedMemoryTransport
from fedsys.communication.transport.torch_distributed import DistributedTransport

__all__ = [
    "ConnectionOptions",
    "DistributedTransport",
    "LocalTransport",
    "SharedMemoryTransport",
    "Transport",
    "choose_transport",
]
