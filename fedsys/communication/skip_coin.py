"""Skip-coin broadcast: the server flips shared coins, and a skipped iteration sends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

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


@dataclass(frozen=True)
class _Round:
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

    def _begin(self, step: int) -> None:
        if isinstance(self.schedule, Coins):
            self._block = (-1, np.empty(0))
            self._round = self._announce(self.schedule, step, self.traffic)

    def _communicates(self, step: int) -> bool:
        if isinstance(self.schedule, Coins):
            assert self._round.first <= step <= self._round.last, f"no coins for step {step}"
            return step == self._round.last
        return super()._communicates(step)

    def _coins(self, step: int) -> Mapping[str, bool]:
        if not isinstance(self.schedule, Coins) or not self.schedule.others:
            return {}
        flips = self._round.others[:, step - self._round.first].tolist()
        return dict(zip(self.schedule.others, flips, strict=True))

    def mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        """The means, and with them the coins of the next round."""
        means = super().mean(fields, traffic, step)
        if isinstance(self.schedule, Coins) and step == self._round.last:
            self._round = self._announce(self.schedule, step + 1, traffic)
        return means

    def _announce(self, coins: Coins, step: int, traffic: Traffic) -> _Round:
        """Flip the coins from `step` to the next heads on the server and tell everybody."""
        is_server = self.transport.rank == 0
        flips = self._flip_until_heads(coins, step) if is_server else None
        started = perf_counter()
        steps = self.transport.broadcast_int(0 if flips is None else flips.shape[1])
        traffic.seconds_waited += perf_counter() - started
        traffic.bytes_control += 8
        if not coins.others:
            return _Round(step, step + steps - 1, _NO_COINS)
        others = np.empty((len(coins.others), steps), dtype=np.bool_)
        if flips is not None:
            others[:] = flips[1:]
        self._timed(self.transport.broadcast, torch.from_numpy(others), traffic)
        traffic.bytes_control += others.nbytes
        return _Round(step, step + steps - 1, others)

    def _flip_until_heads(self, coins: Coins, step: int) -> np.ndarray:
        """Coins [1 + others, steps] from `step` to the next heads of the first coin."""
        flips: list[np.ndarray] = []
        while True:
            block, offset = divmod(step, _BLOCK)
            if self._block[0] != block:
                self._block = (block, _flip(coins, self.seed, block))
            rest = self._block[1][:, offset:]
            heads = int(rest[0].argmax())
            if rest[0, heads]:
                flips.append(rest[:, : heads + 1])
                return flips[0] if len(flips) == 1 else np.concatenate(flips, axis=1)
            flips.append(rest)
            step = (block + 1) * _BLOCK


def _flip(coins: Coins, seed: int, block: int) -> np.ndarray:
    """All coins [1 + others, _BLOCK] of a block of steps."""
    chances = np.array([coins.sync, *coins.others.values()])[:, None]
    uniform = generator(seed, "coins", step=block).random((len(chances), _BLOCK))
    flips: np.ndarray = uniform < chances
    return flips
