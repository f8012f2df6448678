"""Counters of what an algorithm communicates: the horizontal axis of the papers' figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TypeVar

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")


@dataclass
class Traffic:
    """Count the communication of one client since the start of the run.

    The byte counts are those of a client that is connected to a server: what it sends to the server
    (`bytes_up`) and what it receives from it (`bytes_down`). They follow from the shapes and the
    precision of the fields (4 bytes per number with float32, 8 with float64). They are the same for
    all clients and do not depend on the number of processes, the transport or the algorithm of the
    collective. For a field of n numbers of b bytes each and M clients, one exchange counts:

    | exchange                 | `bytes_up` | `bytes_down`           |
    | ------------------------ | ---------- | ---------------------- |
    | `sync(field)`            | n b        | n b                    |
    | `sync.server(f, field)`  | n b        | the bytes of f's result |
    | `sync.gather(field)`     | n b        | M n b                  |

    - Fields of one call are one exchange, and their bytes add up. Synchronised buffers (the running
      statistics of BatchNorm) travel with the first exchange of a round and count with it.
    - Partial participation: m of M clients send. `bytes_up` is the average over all clients, the
      message times m / M, rounded to whole bytes. Every client receives the result.
    - `on_nonfinite=drop`: each message carries two more numbers, the weight of the finite clients
      and the number of dropped ones.
    - Compression: `bytes_up` counts messages at their compressed size. Compression is simulated:
      clients send what a receiver would decode, and the sums travel uncompressed between the
      processes. `bytes_down` is not compressed.
    - Counted: communication steps, and the exchanges before the first step (`initial`), which are
      no round.
    - Not counted: evaluation (`unmetered`), set-up, error handling and checkpoints.
    """

    rounds: int = 0
    """Communication steps."""
    exchanges: int = 0
    """Calls of `sync`, `sync.server` and `sync.gather` that communicated."""
    bytes_up: int = 0
    """Bytes of vectors and matrices that one client has sent to the server.

    With compression, messages count at their compressed size although sums travel uncompressed.
    """
    bytes_down: int = 0
    """Bytes of vectors and matrices that one client has received from the server."""
    bytes_control: int = 0
    """Bytes that one client has received besides vectors and matrices.

    Shared coins: 8 bytes per round for its length, and 1 byte per step for each further coin.
    `sync.server`: 640 bytes with the shapes of the results, once per function and argument shapes.
    """
    seconds_waited: float = 0.0
    """Seconds that this rank has spent in collectives; the only counter that is not of a client."""
    dropped: int = 0
    """Contributions of all clients that were left out of a mean because they were not finite."""

    def timed(self, collective: Callable[[Argument], Answer], argument: Argument) -> Answer:
        """Return `collective(argument)` and add its duration to `seconds_waited`."""
        started = perf_counter()
        answer = collective(argument)
        self.seconds_waited += perf_counter() - started
        return answer

    def as_dict(self) -> dict[str, float]:
        """Return all counters by name."""
        return asdict(self)
