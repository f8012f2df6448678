"""Shared coins: the server flips them, and an iteration that is skipped sends nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.communication.coins import GivenCoins, GivenFlips, RandomFlips
from fedsys.communication.communicator import Communicator
from fedsys.core.rounds import Coins, CommunicationSchedule
from fedsys.core.traffic import Traffic

_NO_COINS = np.empty((0, 0), dtype=np.bool_)


_Round = tuple[int, int, np.ndarray]
"""The steps `first`..`last`, of which the last one communicates, and their other coins [coins,
steps]. A plain tuple, because one is made in every round."""


class SkipCoin(Communicator):
    """All-reduce averaging in the iterations where a shared coin shows heads.

    At the end of a round, the server flips the coins of the next one, up to and including the next
    heads, and broadcasts them. The coins of an iteration are a function of (seed, step), so a run
    that resumes from a checkpoint sees the same coins. A periodic schedule needs no coins and is
    followed as by `AllReduce`.

    Options are those of `Communicator`.
    """

    name = "skip_coin"
    _given_coins: GivenCoins | None = None
    """Coins that replace the random ones; see `use_coins`."""
    _given: GivenFlips | None = None
    """The given coins of an open communicator; None with random ones."""
    _round: _Round | None = None
    """The random coins that are known; None with a periodic schedule and with given coins."""

    @override
    def mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        means = super().mean(fields, traffic, step)
        if self._round is not None and step == self._round[1]:
            assert isinstance(self.schedule, Coins)
            self._round = self._announce(self.schedule, step + 1, traffic)
        return means

    @override
    def _supports(self, schedule: CommunicationSchedule) -> bool:
        return True

    @override
    def _begin(self, step: int) -> None:
        self._round = self._given = None
        if isinstance(self.schedule, Coins):
            if self._given_coins is not None:
                self._given = GivenFlips(self._given_coins, self.schedule)
                return
            self._flips = RandomFlips(self.schedule, self.seed)
            self._round = self._announce(self.schedule, step, self.traffic)

    # The next two are called in every step; `_round` tells the kind of schedule.

    @override
    def _communicates(self, step: int) -> bool:
        if (known := self._round) is None:
            if self._given is not None:
                return self._given.is_heads(step)
            return super()._communicates(step)
        first, last, _ = known
        assert first <= step <= last, f"no coins for step {step}"
        return step == last

    @override
    def _coins(self, step: int) -> Mapping[str, bool] | None:
        if (known := self._round) is None:
            return None if self._given is None else self._given.others(step)
        first, _, others = known
        if others is _NO_COINS:
            return None
        assert isinstance(self.schedule, Coins)
        flips = others[:, step - first].tolist()
        return dict(zip(self.schedule.others, flips, strict=True))

    def _announce(self, coins: Coins, step: int, traffic: Traffic) -> _Round:
        """Flip the coins from `step` to the next heads on the server and broadcast them."""
        is_server = self.transport.rank == 0
        heads = self._flips.next_heads(step) if is_server else 0
        last = traffic.timed(self.transport.broadcast_int, heads)
        traffic.bytes_control += 8
        if not coins.others:
            return step, last, _NO_COINS
        others = np.empty((len(coins.others), last + 1 - step), dtype=np.bool_)
        if is_server:
            others[:] = self._flips.others(step, last)
        traffic.timed(self.transport.broadcast, torch.from_numpy(others))
        traffic.bytes_control += others.nbytes
        return step, last, others


def use_coins(communicator: SkipCoin, coins: GivenCoins | None) -> None:
    """Replace the random coins of a communicator that is not open yet; None restores them."""
    communicator._given_coins = coins
