"""Who was the first to hand in a number that is not finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsys.algorithms import Algorithm, State
from fedsys.communication import AllReduce, Sync
from fedsys.errors import NonFiniteError
from fedsys.problems import Oracle, Site
from fedsys.runtime.world import World

Finding = tuple[int, int, int, str]
"""The step, the exchange in it, the client and the variable: the smallest came first."""


def is_finite(state: State) -> bool:
    """Whether all numbers of the hosted clients are."""
    return all(_first_bad_row(rows) is None for rows in state.tensors().values())


@dataclass(frozen=True)
class Search:
    """Goes through some steps of a run once more, together with the other ranks."""

    algorithm: Algorithm[Any, Any]
    oracle: Oracle
    communicator: AllReduce
    world: World
    site: Site

    def error(self, first: int, state: State, end: int) -> NonFiniteError:
        """Names the first client that failed between the state of step `first` and step `end`."""
        self.communicator.rewind(first)
        mine = self._finding(state, first - 1, 0)
        for step in range(first, end):
            sync = _WatchedSync(self.communicator.at(step))
            state = self.algorithm.step(state, self.oracle.at(step), sync)
            if mine is None and sync and sync.culprit is not None:
                # Who handed it in, before the mean gave it to everybody.
                exchange, row = sync.culprit
                mine = step, exchange, self.site.hosted[row], "a variable"
            mine = mine or self._finding(state, step, sync.exchanges)
        found = [f for f in self.world.transport.all_gather_object(mine) if f is not None]
        step, _, client, variable = min(found)
        return NonFiniteError(step, client, variable, self.site.placement.host_of(client))

    def _finding(self, state: State, step: int, exchange: int) -> Finding | None:
        for name, rows in state.tensors().items():
            row = _first_bad_row(rows)
            if row is not None:
                return step, exchange, self.site.hosted[row], name
        return None


def _first_bad_row(rows: Tensor) -> int | None:
    """The first row with a NaN or an infinity."""
    bad = ~rows.reshape(len(rows), -1).isfinite().all(1)
    return int(bad.nonzero()[0]) if bool(bad.any()) else None


class _WatchedSync(Sync):
    """A sync that looks at what the hosted clients hand in.

    Attributes:
        exchanges: how many there were.
        culprit: the first exchange with a field that is not finite, and the row of its client.
    """

    def __init__(self, sync: Sync) -> None:
        given = (sync._communicator, bool(sync), sync._traffic, sync.step, sync._coins)
        super().__init__(*given)
        self.exchanges = 0
        self.culprit: tuple[int, int] | None = None

    def __call__(self, *fields: Any) -> Any:
        """The means, after a look."""
        self._look(fields)
        return super().__call__(*fields)

    def server(self, function: Any, *fields: Tensor) -> tuple[Tensor, ...]:
        """The server's result, after a look."""
        self._look(fields)
        return super().server(function, *fields)

    def gather(self, values: Tensor) -> Tensor:
        """The values, after a look."""
        self._look((values,))
        return super().gather(values)

    def _look(self, fields: tuple[Tensor, ...]) -> None:
        rows = [row for row in map(_first_bad_row, fields) if row is not None]
        if self.culprit is None and rows:
            self.culprit = self.exchanges, min(rows)
        self.exchanges += 1
