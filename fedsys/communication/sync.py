"""What an algorithm's step sees of the other clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, overload

from torch import Tensor

if TYPE_CHECKING:
    from fedsys.communication.all_reduce import AllReduce
    from fedsys.communication.compression import Compressed
    from fedsys.communication.traffic import Traffic

Serve = Callable[..., Tensor | tuple[Tensor, ...]]
"""What the server does with the means: one or several tensors of them."""


class Sync:
    """The paper's averaging line: the only way for an algorithm to communicate.

    On a communication step `x, y = sync(x, y)` is one fused all-reduce; on a local step it is the
    identity and sends nothing. `if sync:` tells which of the two this step is. Averaged fields come
    back as one row shared by all hosted clients: never write to them in place.
    """

    __slots__ = ("_coins", "_communicates", "_communicator", "_traffic", "step")  # made every step

    def __init__(
        self,
        communicator: AllReduce | Compressed,
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
        """The means of the fields over all clients, or the fields themselves on a local step."""
        if self._communicates:
            fields = self._communicator.mean(fields, self._traffic, self.step)
        return fields if len(fields) > 1 else fields[0]

    def server(self, function: Serve, *fields: Tensor) -> tuple[Tensor, ...]:
        """Means of the fields reach the server, which runs the function and broadcasts its result.

        The function gets the means without the client axis, runs on rank 0 only, and returns one or
        several tensors whose shapes depend only on the shapes of its arguments.
        """
        assert self._communicates, "sync.server belongs under `if sync:`"
        return self._communicator.server(function, fields, self._traffic, self.step)

    def gather(self, values: Tensor) -> Tensor:
        """The small values [C, ...] of the hosted clients, of all clients: [M, ...]."""
        assert self._communicates, "sync.gather belongs under `if sync:`"
        return self._communicator.gather(values, self._traffic)

    def coin(self, name: str) -> bool:
        """This step's shared coin of that name; the algorithm's schedule declares its chance."""
        assert self._coins is not None, "the schedule has no coins but that of the round"
        return self._coins[name]
