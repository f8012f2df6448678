"""Step sizes that fall in stages, at given shares of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Self

from fedsys.algorithms.algorithm import AnyOracle, AnyState, PeriodicAlgorithm


@dataclass(frozen=True)
class StagedAlgorithm(PeriodicAlgorithm[AnyOracle, AnyState]):
    """A periodic algorithm whose step sizes fall at given shares of the run, with a round's start.

    Args:
        local_steps: K, the steps of a round.
        decay_at: the shares, such as [0.5, 0.75]; none by default.
        decay_by: what the step sizes are divided by at each of them.
        total_steps: T, the length of the run; the runner tells it.
    """

    decay_at: Sequence[float] = ()
    decay_by: float = 10.0
    total_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "decay_at", tuple(self.decay_at))
        shares = (0.0, *self.decay_at, 1.0)
        increasing = all(a < b for a, b in pairwise(shares))
        self._require(increasing, "decay_at", "increasing shares in (0, 1)")
        self._require_positive("decay_by")
        T = self.total_steps
        self._require(T is None or (isinstance(T, int) and T >= 1), "total_steps", "at least 1")

    def planned(self, steps: int) -> Self:
        """With the length of the run."""
        return replace(self, total_steps=steps) if self.total_steps is None else self

    def _first_steps(self) -> list[int]:
        """Where each stage begins; always with a round."""
        if not self.decay_at:
            return [0]
        assert self.total_steps is not None, "the runner tells the length of the run"
        rounds = self.total_steps / self.local_steps
        return [0, *(self.local_steps * ceil(share * rounds) for share in self.decay_at)]

    def _stage(self, step: int) -> int:
        """The stage of iteration `step`: 0, 1, ..."""
        return sum(step >= first for first in self._first_steps()) - 1

    def _first_step(self, step: int) -> int:
        """The first step of that stage."""
        return self._first_steps()[self._stage(step)]

    def _decay(self, step: int) -> float:
        """The factor on the step sizes of iteration `step`."""
        return float(self.decay_by ** -self._stage(step))
