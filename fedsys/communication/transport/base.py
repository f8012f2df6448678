"""The contract of a transport."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from fedsys.communication.values import Parse, Value


class Transport(Protocol):
    """Collectives over all ranks of a run; rank 0 is the server.

    All ranks make the same calls in the same order, with buffers of the same shape, dtype and
    device type. A call returns when its result is there, and raises `LostRankError` when a rank
    does not answer. Every transport has the same verbs, so callers never ask which one they have.

    Attributes:
        rank: the rank of this process.
        size: the number of ranks.
        waits: whether a collective is in progress; another thread may read it.
    """

    rank: int
    size: int
    waits: bool

    def all_reduce(self, buffer: Tensor) -> None:
        """Replace `buffer` by its sum over the ranks, in place."""

    def reduce(self, buffer: Tensor) -> None:
        """Replace `buffer` by its sum over the ranks on rank 0; it is undefined elsewhere."""

    def broadcast(self, buffer: Tensor) -> None:
        """Replace `buffer` by that of rank 0, in place."""

    def broadcast_int(self, value: int) -> int:
        """Return the integer of rank 0."""

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        """Return the rows of every rank, in the order of ranks."""

    def all_gather_values(self, value: Any, parse: Parse[Value]) -> list[Value]:
        """Return a small value of every rank, as `parse` accepts it; see values.py.

        It serves set-up and errors, not the hot path.
        """

    def close(self) -> None:
        """Release the resources; no collective may follow."""
