"""The `Sync` of runs that are stepped together: every run averages its own rows.

Axes: R runs, C clients of a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.sync import Exchanges, Serve, Sync
from fedsys.core.traffic import Traffic

Pattern = tuple[bool, tuple[tuple[str, bool], ...] | None]
"""Whether a run communicates, and its further coins: what a step may ask."""


def pattern_of(sync: Sync) -> Pattern:
    """Return what a step of a run depends on besides numbers."""
    coins = sync._coins
    return bool(sync), None if coins is None else tuple(coins.items())


def stacked_sync(syncs: Sequence[Sync], chosen: Sequence[bool], clients: int) -> Sync:
    """Return the sync of a step of all runs that is meant for the chosen ones, which agree.

    Args:
        syncs: those of the runs.
        chosen: the runs whose rows are used; those of the others are left as they are.
        clients: C.
    """
    one = next(sync for sync, is_chosen in zip(syncs, chosen, strict=True) if is_chosen)
    given = one.step, one._coins
    if not one:
        return Sync(one._communicator, False, Traffic(), *given)
    return Sync(_OfEachRun(syncs, chosen, clients), True, Traffic(), *given)


class _OfEachRun(Exchanges):
    def __init__(self, syncs: Sequence[Sync], chosen: Sequence[bool], clients: int) -> None:
        self._syncs, self._chosen, self._clients = syncs, chosen, clients

    @override
    def mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        blocks = [field.split(self._clients) for field in fields]
        rows = [[*block] for block in blocks]
        for run, sync in enumerate(self._syncs):
            if self._chosen[run]:
                means = sync(*(block[run] for block in blocks))
                for row, mean in zip(rows, means if len(fields) > 1 else (means,), strict=True):
                    row[run] = mean
        return tuple(torch.cat(row) for row in rows)

    @override
    def server(
        self, function: Serve, fields: tuple[Tensor, ...], traffic: Traffic, step: int
    ) -> tuple[Tensor, ...]:
        raise AssertionError("an algorithm that needs a server is not stacked")

    @override
    def gather(self, values: Tensor, traffic: Traffic) -> Tensor:
        raise AssertionError("an algorithm that gathers values does not declare `stackable`")
