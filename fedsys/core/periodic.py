"""Algorithms that communicate after a fixed number of steps, with constant or staged step sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import Self

from typing_extensions import override

from fedsys.core.algorithm import Algorithm, AnyOracle, AnyState
from fedsys.core.rounds import CommunicationSchedule, Every
from fedsys.core.schedules import Staged


@dataclass(frozen=True)
class PeriodicAlgorithm(Algorithm[AnyOracle, AnyState]):
    """An algorithm that communicates in every `local_steps`-th step.

    Args:
        local_steps: K, the steps of a round.
    """

    local_steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.local_steps >= 1, "local_steps", "at least 1")

    @property
    @override
    def schedule(self) -> CommunicationSchedule:
        return Every(self.local_steps)


@dataclass(frozen=True)
class StagedAlgorithm(PeriodicAlgorithm[AnyOracle, AnyState]):
    """A periodic algorithm whose step sizes are divided at given fractions of the run.

    Every stage starts with a round.

    Args:
        local_steps: K, the number of steps of a round.
        decay_at: the fractions; an empty list keeps the step sizes constant.
        decay_by: what the step sizes are divided by at each of them.
        total_steps: T, the length of the run; the runner sets it.
    """

    local_steps: int = 4
    decay_at: Sequence[float] = (0.5, 0.75)
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
        self._require(T is None or T >= 1, "total_steps", "at least 1")

    @override
    def planned(self, steps: int) -> Self:
        is_wanted = bool(self.decay_at) and self.total_steps is None
        return replace(self, total_steps=steps) if is_wanted else self

    @cached_property
    def _stages(self) -> Staged:
        """The factor on the step sizes of each iteration."""
        if not self.decay_at:
            return Staged(1.0, divide_by=self.decay_by)
        assert self.total_steps is not None, "the runner tells the length of the run"
        rounds = self.total_steps / self.local_steps
        starts = [self.local_steps * ceil(share * rounds) for share in self.decay_at]
        return Staged(1.0, starts, divide_by=self.decay_by)
