"""Schedules: step sizes and weights that change from iteration to iteration.

A hyperparameter of type `Rate` takes a number, which stays constant, or one of the schedules
below. In a YAML a schedule is a node with its class as `_target_`. A hyperparameter of type
`Rate | FromTheory` also takes the word `theory`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from math import cos, inf, pi
from typing import ClassVar, Final

from typing_extensions import override

from fedsys.core.errors import InputError, require
from fedsys.core.fields import Checked


class FromTheory(Enum):
    """The type of a hyperparameter that a theorem chooses from the problem's constants."""

    THEORY = "theory"

    @override
    def __repr__(self) -> str:
        return "theory"

    __str__ = __repr__


THEORY: Final = FromTheory.THEORY
"""The value of a hyperparameter that is computed from the problem's constants before the run."""


@dataclass(frozen=True)
class Schedule(Checked, ABC):
    """A number per iteration, never negative."""

    described_as: ClassVar[str] = "a schedule"

    @abstractmethod
    def at(self, step: int) -> float:
        """Return the value of iteration `step`, counted from 0."""

    @property
    @abstractmethod
    def highest(self) -> float:
        """The smallest number that no value exceeds."""

    @property
    def reaches_zero(self) -> bool:
        """Whether some value is 0, by which an algorithm cannot divide."""
        return self.highest == 0

    def _require(self, condition: bool, name: str, rule: str) -> None:
        require(condition, type(self).__name__, name, getattr(self, name), rule)


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value in every iteration; a plain number means the same.

    Args:
        value: the value.
    """

    value: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.value >= 0, "value", "at least 0")

    @override
    def at(self, step: int) -> float:
        return self.value

    @property
    @override
    def highest(self) -> float:
        return self.value


@dataclass(frozen=True)
class Decreasing(Schedule):
    """scale / (t + offset)^power.

    Args:
        scale: the numerator.
        offset: how far the schedule has advanced at t = 0.
        power: 1 by default; 1/3 for eta_t = n K^(1/3) / (m + t)^(1/3) of FGDA.
    """

    scale: float
    offset: float
    power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("scale", "offset", "power"):
            self._require(getattr(self, name) > 0, name, "positive")

    @override
    def at(self, step: int) -> float:
        return float(self.scale / (step + self.offset) ** self.power)

    @property
    @override
    def highest(self) -> float:
        return self.at(0)


@dataclass(frozen=True)
class Staged(Schedule):
    """value in the first stage, divided by `divide_by` at the start of each further stage.

    Args:
        value: the value of the first stage.
        starts: the first iterations of the further stages, increasing; or
        every: the length of every stage.
        divide_by: what the value is divided by.
    """

    value: float
    starts: Sequence[int] = ()
    every: int | None = None
    divide_by: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "starts", tuple(self.starts))
        self._require(self.value >= 0, "value", "at least 0")
        increasing = all(a <= b for a, b in pairwise((0, *self.starts)))
        self._require(increasing, "starts", "increasing and at least 0")
        self._require(self.every is None or self.every >= 1, "every", "at least 1")
        both = bool(self.starts) and self.every is not None
        self._require(not both, "every", "null where starts are given")
        self._require(self.divide_by > 0, "divide_by", "positive")

    @override
    def at(self, step: int) -> float:
        return self.value * float(self.divide_by ** -self.stage(step))

    @property
    @override
    def highest(self) -> float:
        if self.divide_by >= 1:
            return self.value
        return inf if self.every is not None else self.at(max(self.starts, default=0))

    def stage(self, step: int) -> int:
        """Return the stage of iteration `step`: 0, 1, ..."""
        return step // self.every if self.every is not None else bisect_right(self.starts, step)

    def start_of_stage(self, step: int) -> int:
        """Return the first iteration of the stage that iteration `step` belongs to."""
        stage = self.stage(step)
        if self.every is not None:
            return stage * self.every
        return self.starts[stage - 1] if stage else 0


@dataclass(frozen=True)
class Cosine(Schedule):
    """final + (value - final) (1 + cos(pi t / steps)) / 2, and `final` from t = steps on.

    Args:
        value: the value of iteration 0.
        steps: the iteration at which `final` is reached.
        final: the last value, at most `value`.
    """

    value: float
    steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.value >= 0, "value", "at least 0")
        self._require(self.steps >= 1, "steps", "at least 1")
        self._require(0 <= self.final <= self.value, "final", f"in [0, value = {self.value}]")

    @override
    def at(self, step: int) -> float:
        if step >= self.steps:
            return self.final
        return self.final + (self.value - self.final) * (1 + cos(pi * step / self.steps)) / 2

    @property
    @override
    def highest(self) -> float:
        return self.value

    @property
    @override
    def reaches_zero(self) -> bool:
        return self.final == 0


@dataclass(frozen=True)
class Warmup(Schedule):
    """(t + 1) / steps times another schedule for t < steps, and that schedule from then on.

    Args:
        then: the other schedule, or a number.
        steps: the length of the linear increase.
    """

    then: float | Schedule
    steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(highest(self.then) >= 0, "then", "at least 0")
        self._require(self.steps >= 1, "steps", "at least 1")

    @override
    def at(self, step: int) -> float:
        return min(1.0, (step + 1) / self.steps) * at(self.then, step)

    @property
    @override
    def highest(self) -> float:
        return highest(self.then)

    @property
    @override
    def reaches_zero(self) -> bool:
        return self.then.reaches_zero if isinstance(self.then, Schedule) else self.then == 0


Rate = float | Schedule
"""The type of a step size or weight: a number, or a schedule."""


def at(rate: Rate | FromTheory, step: int) -> float:
    """Return the value of a step size or weight in iteration `step`."""
    if type(rate) is float:  # the usual case; isinstance of an abstract class takes four times
        return rate
    if isinstance(rate, Schedule):
        return rate.at(step)
    return number(rate)


def number(value: float | Schedule | FromTheory) -> float:
    """Return a hyperparameter that is a number by now: theory has been replaced by `tuned`."""
    if type(value) is float:  # the usual case, in every step
        return value
    if isinstance(value, FromTheory):
        raise InputError("a step size is still left to theory; call tuned() before the first step")
    assert not isinstance(value, Schedule), "refused when the algorithm was built"
    return value


def highest(rate: Rate) -> float:
    """Return the smallest number that no value of a step size or weight exceeds."""
    return rate.highest if isinstance(rate, Schedule) else rate
