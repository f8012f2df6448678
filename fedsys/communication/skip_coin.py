"""Skip-coin broadcast: the server flips shared coins, and a skipped iteration sends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsys.communication.all_reduce import AllReduce
from fedsys.communication.schedule import Coins, Schedule
from fedsys.communication.traffic import Traffic
from fedsys.random import generator

_BLOCK = 1024
"""Steps whose coins the server flips at a time."""


_NO_COINS = np.empty((0, 0), dtype=np.bool_)


class _Round(NamedTuple):
    """The coins of the steps `first`..`last`; the last is the one that communicates."""

    first: int
    last: int
    others: np.ndarray  # [coins, steps]


class SkipCoin(AllReduce):
    """All-reduce averaging on the steps where the shared coin shows heads.

    With the round that ends, the server flips the coins of the next one, up to and including the
    next heads, and broadcasts them. The coin of an iteration is a function of (seed, step), so a
    run that is continued sees the coins it would have seen.
    """

    name = "skip_coin"

    def _accept(self, schedule: Schedule) -> None:
        """Both kinds of schedule; a periodic one needs no coins."""

    _round: _Round | None = None
    """The coins that are known; None with a periodic schedule."""

    def _begin(self, step: int) -> None:
        self._round = None
        if isinstance(self.schedule, Coins):
            self._flips = _Flips(self.schedule, self.seed)
            self._round = self._announce(self.schedule, step, self.traffic)

    # The next three are called in every step, and know the kind of schedule by the round.

    def _communicates(self, step: int) -> bool:
        if self._round is None:
            return super()._communicates(step)
        first, last, _ = self._round
        assert first <= step <= last, f"no coins for step {step}"
        return step == last

    def _coins(self, step: int) -> Mapping[str, bool] | None:
        if self._round is None or self._round.others is _NO_COINS:
            return None
        assert isinstance(self.schedule, Coins)
        flips = self._round.others[:, step - self._round.first].tolist()
        return dict(zip(self.schedule.others, flips, strict=True))

    def mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        """The means, and with them the coins of the next round."""
        means = super().mean(fields, traffic, step)
        if self._round is not None and step == self._round.last:
            assert isinstance(self.schedule, Coins)
            self._round = self._announce(self.schedule, step + 1, traffic)
        return means

    def _announce(self, coins: Coins, step: int, traffic: Traffic) -> _Round:
        """Flip the coins from `step` to the next heads on the server and tell everybody."""
        is_server = self.transport.rank == 0
        started = perf_counter()
        last = self.transport.broadcast_int(self._flips.next_heads(step) if is_server else 0)
        traffic.seconds_waited += perf_counter() - started
        traffic.bytes_control += 8
        if not coins.others:
            return _Round(step, last, _NO_COINS)
        others = np.empty((len(coins.others), last + 1 - step), dtype=np.bool_)
        if is_server:
            others[:] = self._flips.others(step, last)
        self._timed(self.transport.broadcast, torch.from_numpy(others), traffic)
        traffic.bytes_control += others.nbytes
        return _Round(step, last, others)


class _Flips:
    """The server's coins, flipped a block of steps at a time."""

    def __init__(self, coins: Coins, seed: int) -> None:
        self._chances = np.array([coins.sync, *coins.others.values()])[:, None]
        self._seed = seed
        self._block = -1

    def next_heads(self, step: int) -> int:
        """The first step from `step` on that communicates."""
        while True:
            block, offset = divmod(step, _BLOCK)
            if block != self._block:
                heads = np.where(self._flip(block)[0], np.arange(_BLOCK), _BLOCK)
                self._following = np.minimum.accumulate(heads[::-1])[::-1].tolist()
                self._block = block
            if self._following[offset] < _BLOCK:
                return block * _BLOCK + int(self._following[offset])
            step = (block + 1) * _BLOCK

    def others(self, first: int, last: int) -> np.ndarray:
        """The other coins [others, steps] of the steps `first`..`last`."""
        blocks = range(first // _BLOCK, last // _BLOCK + 1)
        flips = np.concatenate([self._flip(block) for block in blocks], axis=1)
        offset = blocks[0] * _BLOCK
        return flips[1:, first - offset : last + 1 - offset]

    @lru_cache(maxsize=2)  # noqa: B019, it lives as long as the communicator
    def _flip(self, block: int) -> np.ndarray:
        """All coins [1 + others, _BLOCK] of a block of steps."""
        uniform = generator(self._seed, "coins", step=block).random((len(self._chances), _BLOCK))
        flips: np.ndarray = uniform < self._chances
        return flips
