"""How clients agree: placement, transport, and the three communicators on it."""

from fedsys.communication.adaptive_matrix import AdaptiveMatrix
from fedsys.communication.all_reduce import AllReduce
from fedsys.communication.compression import Codec, Compressed
from fedsys.communication.host_memory import HostTransport, wire
from fedsys.communication.placement import Placement
from fedsys.communication.schedule import Coins, Every, Schedule
from fedsys.communication.skip_coin import SkipCoin
from fedsys.communication.sync import Sync
from fedsys.communication.traffic import Traffic
from fedsys.communication.transport import DistributedTransport, LocalTransport, Transport

__all__ = [
    "AdaptiveMatrix",
    "AllReduce",
    "Codec",
    "Coins",
    "Compressed",
    "DistributedTransport",
    "Every",
    "HostTransport",
    "LocalTransport",
    "Placement",
    "Schedule",
    "SkipCoin",
    "Sync",
    "Traffic",
    "Transport",
    "wire",
]
