"""Skip-coin broadcast: the server flips shared coins, and a skipped iteration sends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsys.communication.all_reduce import AllReduce
from fedsys.communication.schedule import Coins, Schedule
from fedsys.communication.traffic import Traffic
from fedsys.random import BLOCK, generator


@dataclass(frozen=True)
class _Round:
    """The coins of the steps `first`..`last`; the last is the one that communicates."""

    first: int
    last: int
    others: Tensor  # [coins, steps]


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
            self._round = self._announce(self.schedule, step, self.traffic)

    def _communicates(self, step: int) -> bool:
        if isinstance(self.schedule, Coins):
            assert self._round.first <= step <= self._round.last, f"no coins for step {step}"
            return step == self._round.last
        return super()._communicates(step)

    def _coins(self, step: int) -> Mapping[str, bool]:
        if not isinstance(self.schedule, Coins):
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
        flips = _flip_until_heads(coins, self.seed, step) if is_server else None
        length = torch.tensor([0 if flips is None else flips.shape[1]])
        self._timed(self.transport.broadcast, length, traffic)
        steps = int(length)
        others = torch.empty(len(coins.others), steps, dtype=torch.uint8)
        if flips is not None:
            others.copy_(torch.from_numpy(flips[1:]))
        if coins.others:
            self._timed(self.transport.broadcast, others, traffic)
        traffic.bytes_control += length.element_size() + others.numel()
        return _Round(step, step + steps - 1, others.bool())


def _flip_until_heads(coins: Coins, seed: int, step: int) -> np.ndarray:
    """Coins [1 + others, steps] from `step` to the next heads of the first coin."""
    chances = np.array([coins.sync, *coins.others.values()])[:, None]
    flips: list[np.ndarray] = []
    block, offset = divmod(step, BLOCK)
    while True:
        stream = generator(seed, "coins", step=block)
        flips.append((stream.random((len(chances), BLOCK)) < chances)[:, offset:])
        heads = np.flatnonzero(flips[-1][0])
        if len(heads):
            flips[-1] = flips[-1][:, : heads[0] + 1]
            return np.concatenate(flips, axis=1)
        block, offset = block + 1, 0
