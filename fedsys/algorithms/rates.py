"""Step sizes: numbers, numbers that the theory fills in, and numbers that decrease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

THEORY = cast(float, "theory")
"""The value of a hyperparameter that is computed from the problem's constants before the run."""


@dataclass(frozen=True)
class Decreasing:
    """scale / (t + offset)."""

    scale: float
    offset: float

    def at(self, step: int) -> float:
        """The step size of iteration `step`."""
        return self.scale / (step + self.offset)


Rate = float | Decreasing


def rate_at(rate: Rate, step: int) -> float:
    """The step size of iteration `step`."""
    return rate.at(step) if isinstance(rate, Decreasing) else rate
