"""Find the client that was the first to send a non-finite number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override

from fedsys.communication import Communicator
from fedsys.communication.values import integer, optional, text
from fedsys.core.algorithm import Algorithm, State
from fedsys.core.errors import NonFiniteError
from fedsys.core.oracles import Oracle
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.distributed.world import World

Finding = tuple[int, int, int, str]
"""The step, the exchange in it, the client and the variable; the smallest one was the first."""


def is_finite(state: State) -> bool:
    """Return whether all numbers in the state of the hosted clients are finite."""
    return all(_first_bad_row(rows) is None for rows in state.tensors().values())


@dataclass(frozen=True)
class NonFiniteLocator:
    """Repeats some steps of a run, together with the other ranks, and checks every exchange."""

    algorithm: Algorithm[Any, Any]
    oracle: Oracle
    communicator: Communicator
    world: World
    site: Site

    def error(self, first: int, state: State, end: int) -> NonFiniteError:
        """Return an error that names the first client that failed between steps `first` and `end`.

        Args:
            first: the step of `state`.
            state: the state from which the steps are repeated.
            end: the step at which a non-finite number was found.
        """
        self.communicator.rewind(first)
        mine = self._finding(state, first - 1, 0)
        for step in range(first, end):
            sync = _WatchedSync(self.communicator.at(step))
            state = self.algorithm.step(state, self.oracle.at(step), sync)
            if mine is None and sync and sync.culprit is not None:
                # The client that sent it: the mean spreads it to all clients.
                exchange, row = sync.culprit
                mine = step, exchange, self.site.hosted[row], "a variable"
            mine = mine or self._finding(state, step, sync.exchanges)
        findings = self.world.transport.all_gather_values(mine, optional(_parse_finding))
        step, _, client, variable = min(finding for finding in findings if finding is not None)
        return NonFiniteError(step, client, variable, self.site.placement.host_of(client))

    def _finding(self, state: State, step: int, exchange: int) -> Finding | None:
        for name, rows in state.tensors().items():
            row = _first_bad_row(rows)
            if row is not None:
                return step, exchange, self.site.hosted[row], name
        return None


def _parse_finding(value: Any) -> Finding:
    step, exchange, client, variable = value
    return integer(step), integer(exchange), integer(client), text(variable)


def _first_bad_row(rows: Tensor) -> int | None:
    """Return the first row with a NaN or an infinity, or None."""
    bad = ~rows.reshape(len(rows), -1).isfinite().all(1)
    return int(bad.nonzero()[0]) if bool(bad.any()) else None


class _WatchedSync(Sync):
    """A sync that checks what the hosted clients send.

    Attributes:
        exchanges: the number of exchanges so far.
        culprit: the first exchange with a non-finite field, and the row of its client.
    """

    def __init__(self, sync: Sync) -> None:
        given = (sync._communicator, bool(sync), sync._traffic, sync.step, sync._coins)
        super().__init__(*given)
        self.exchanges = 0
        self.culprit: tuple[int, int] | None = None

    @override
    def __call__(self, *fields: Any) -> Any:
        self._check(fields)
        return super().__call__(*fields)

    @override
    def server(self, function: Any, *fields: Tensor) -> tuple[Tensor, ...]:
        self._check(fields)
        return super().server(function, *fields)

    @override
    def gather(self, values: Tensor) -> Tensor:
        self._check((values,))
        return super().gather(values)

    def _check(self, fields: tuple[Tensor, ...]) -> None:
        rows = [row for row in map(_first_bad_row, fields) if row is not None]
        if self.culprit is None and rows:
            self.culprit = self.exchanges, min(rows)
        self.exchanges += 1
