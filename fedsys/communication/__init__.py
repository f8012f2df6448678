"""How clients communicate: the communicators, the parts they are made of, and the transports."""

from fedsys.communication.adaptive_matrix import AdaptiveMatrix
from fedsys.communication.aggregation import AggregationOptions, Aggregator
from fedsys.communication.all_reduce import AllReduce
from fedsys.communication.communicator import Communicator
from fedsys.communication.compression import Codec, Compressed
from fedsys.communication.skip_coin import SkipCoin
from fedsys.communication.transport import (
    ConnectionOptions,
    DistributedTransport,
    LocalTransport,
    SharedMemoryTransport,
    Transport,
    choose_transport,
)
from fedsys.core.traffic import Traffic

__all__ = [
    "AdaptiveMatrix",
    "AggregationOptions",
    "Aggregator",
    "AllReduce",
    "Codec",
    "Communicator",
    "Compressed",
    "ConnectionOptions",
    "DistributedTransport",
    "LocalTransport",
    "SharedMemoryTransport",
    "SkipCoin",
    "Traffic",
    "Transport",
    "choose_transport",
]
