"""Communication as an algorithm's step sees it.

Axes: C clients hosted by this rank, M clients in total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, overload

from torch import Tensor

from fedsys.core.traffic import Traffic

Serve = Callable[..., Tensor | tuple[Tensor, ...]]
"""A function that the server applies to the means; it returns one or several tensors."""


class Exchanges(Protocol):
    """The verbs of a communicator that `Sync` calls on a communication step.

    All ranks make the same calls in the same order. `step` is the iteration, or -1 outside of the
    iterations: before the first one, and in evaluation. `traffic` is counted up by each call.
    """

    def mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        """Return the weighted means of `fields` [C, ...] over all clients, in the same shapes.

        The rows of a mean may share their memory.
        """

    def server(
        self, function: Serve, fields: tuple[Tensor, ...], traffic: Traffic, step: int
    ) -> tuple[Tensor, ...]:
        """Run `function` of the means on the server and return its results as rows [C, ...]."""

    def gather(self, values: Tensor, traffic: Traffic) -> Tensor:
        """Return the values [M, ...] of all clients, given those of the hosted ones [C, ...]."""


class Sync:
    """The averaging line of a paper, and an algorithm's only way to communicate.

    A communicator makes one `Sync` for each iteration:

    - On a communication step it is true, and `x, y = sync(x, y)` replaces the fields of all clients
      by their weighted means in one fused exchange.
    - On a local step it is false, `sync(x, y)` returns its arguments unchanged, and nothing is
      sent. `server` and `gather` are for communication steps only: call them under `if sync:`.

    All clients see the same kind of step. A mean is one row that the hosted clients share: never
    write to it in place. The fields themselves are not modified.

    Args:
        communicator: performs the exchanges.
        communicates: whether this is a communication step.
        traffic: the counters of these exchanges.
        step: the iteration, or -1 outside of the iterations.
        coins: the shared coins of this iteration by name, for `coin`.
    """

    __slots__ = ("_coins", "_communicates", "_communicator", "_traffic", "step")  # made every step

    def __init__(
        self,
        communicator: Exchanges,
        communicates: bool,
        traffic: Traffic,
        step: int = -1,
        coins: Mapping[str, bool] | None = None,
    ) -> None:
        self._communicator = communicator
        self._communicates = communicates
        self._traffic = traffic
        self._coins = coins
        self.step = step

    def __bool__(self) -> bool:
        return self._communicates

    @overload
    def __call__(self, field: Tensor, /) -> Tensor: ...

    @overload
    def __call__(self, field: Tensor, second: Tensor, /, *others: Tensor) -> tuple[Tensor, ...]: ...

    def __call__(self, *fields: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the weighted means of `fields` [C, ...] over all clients.

        On a local step, return the fields themselves. One field gives a tensor, several give a
        tuple.
        """
        if self._communicates:
            fields = self._communicator.mean(fields, self._traffic, self.step)
        return fields if len(fields) > 1 else fields[0]

    def server(self, function: Serve, *fields: Tensor) -> tuple[Tensor, ...]:
        """Run `function` of the means of `fields` on the server and return its broadcast results.

        Args:
            function: gets the means without the client axis, runs on rank 0 only, and returns one
                or several tensors whose shapes depend only on the shapes of its arguments.
            fields: tensors [C, ...].

        Returns:
            The results, bit-identical for all clients, as rows [C, ...] that share their memory.
        """
        assert self._communicates, "sync.server belongs under `if sync:`"
        return self._communicator.server(function, fields, self._traffic, self.step)

    def gather(self, values: Tensor) -> Tensor:
        """Return the values [M, ...] of all clients in their order, given the hosted [C, ...].

        Every client receives all values: keep them small.
        """
        assert self._communicates, "sync.gather belongs under `if sync:`"
        return self._communicator.gather(values, self._traffic)

    def coin(self, name: str) -> bool:
        """Return the shared coin `name` of this iteration; the schedule declares its probability.

        It can be read in every iteration and is the same for all clients.
        """
        assert self._coins is not None, "the schedule has no coins but that of the round"
        return self._coins[name]
