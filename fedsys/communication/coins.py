"""Where shared coins come from: random numbers, or the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from fedsys.core.errors import InputError
from fedsys.core.random import generator
from fedsys.core.rounds import Coins

ROUND = "sync"
"""The name of the coin that decides on communication."""
GivenCoins = Sequence[bool] | Mapping[str, Sequence[bool]] | Callable[..., bool]
"""Coins given by the user: one for each step, by name if there are several, or a function.

A function gets the step, and the name of the coin if the algorithm has more than that of the round.
It is called on every rank, and its answers must agree.
"""
_BLOCK = 1024
"""The number of steps whose coins the server flips at a time."""


class RandomFlips:
    """Coins that are functions of (seed, step), flipped a block of steps at a time."""

    def __init__(self, coins: Coins, seed: int) -> None:
        self._chances = np.array([coins.sync, *coins.others.values()])[:, None]
        self._seed = seed
        self._block = -1

    def next_heads(self, step: int) -> int:
        """Return the first step from `step` on that communicates."""
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
        """Return the further coins [others, steps] of the steps `first`..`last`."""
        blocks = range(first // _BLOCK, last // _BLOCK + 1)
        flips = np.concatenate([self._flip(block) for block in blocks], axis=1)
        offset = blocks[0] * _BLOCK
        return flips[1:, first - offset : last + 1 - offset]

    @lru_cache(maxsize=2)  # noqa: B019, it lives as long as the communicator
    def _flip(self, block: int) -> np.ndarray:
        """Return all coins [1 + others, _BLOCK] of a block of steps."""
        uniform = generator(self._seed, "coins", step=block).random((len(self._chances), _BLOCK))
        flips: np.ndarray = uniform < self._chances
        return flips


class GivenFlips:
    """Coins that the user gives; all ranks know them, and nothing is broadcast.

    Args:
        given: see `GivenCoins`.
        coins: the schedule, for the names of its coins.
    """

    def __init__(self, given: GivenCoins, coins: Coins) -> None:
        self._names = [ROUND, *coins.others]
        self._given = given
        if not callable(given):
            lists = given if isinstance(given, Mapping) else {ROUND: given}
            if {*lists} != {*self._names}:
                raise InputError(
                    f"coins: the algorithm flips {_listed(self._names)}, got {_listed([*lists])}; "
                    "give a list for each name, or a function"
                )
            self._lists = {name: [bool(coin) for coin in coins] for name, coins in lists.items()}
            self._end = min(map(len, self._lists.values()))

    def is_heads(self, step: int) -> bool:
        """Return whether a step communicates; refuse one for which no coin is given."""
        return self._coin(ROUND, step)

    def others(self, step: int) -> dict[str, bool] | None:
        """Return the further coins of a step by name; None if there are none."""
        return {name: self._coin(name, step) for name in self._names[1:]} or None

    def _coin(self, name: str, step: int) -> bool:
        given = self._given
        if callable(given):
            return bool(given(step) if len(self._names) == 1 else given(step, name))
        if step >= self._end:
            raise InputError(
                f"coins: {self._end} steps are given and the run has more; give a coin for every "
                "step, or a function"
            )
        return self._lists[name][step]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(repr(name) for name in names)
