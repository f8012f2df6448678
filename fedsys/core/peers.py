"""The other ranks of a run, as problems see them before training: what clients agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from torch import Tensor

Value = TypeVar("Value")


class Peers(Protocol):
    """Exchanges between the ranks while a problem builds its oracle.

    All ranks make the same calls in the same order. If the code between two calls raises an error
    on one rank, the next call raises that error on all ranks.
    """

    def gather(self, value: Any, parse: Callable[[Any], Value]) -> list[Value]:
        """Return a small value of every rank (JSON), as `parse` accepts it, by rank."""

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the ranks, in float64."""


class NoPeers:
    """The peers of a process that hosts all clients."""

    def gather(self, value: Any, parse: Callable[[Any], Value]) -> list[Value]:
        """Return the value of this process."""
        return [parse(value)]

    def total(self, values: Tensor) -> Tensor:
        """Return the values in float64."""
        return values.double()
