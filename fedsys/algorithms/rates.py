"""Step sizes: numbers, numbers that the theory fills in, and numbers that decrease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from fedsys.errors import require

THEORY = cast(float, "theory")
"""The value of a hyperparameter that is computed from the problem's constants before the run."""


@dataclass(frozen=True)
class Decreasing:
    """scale / (t + offset)^power; in a YAML, a rate with this class as its `_target_`.

    Args:
        scale: the numerator.
        offset: how far the schedule has gone at t = 0.
        power: 1 by default; 1/3 for eta_t of adafgda.txt, n K^(1/3) / (m + t)^(1/3).
    """

    scale: float
    offset: float
    power: float = 1.0

    def __post_init__(self) -> None:
        for name in ("scale", "offset", "power"):
            value = getattr(self, name)
            valid = isinstance(value, int | float) and value > 0
            require(valid, type(self).__name__, name, value, "positive")

    def at(self, step: int) -> float:
        """The step size of iteration `step`."""
        return float(self.scale / (step + self.offset) ** self.power)


Rate = float | Decreasing


def rate_at(rate: Rate, step: int) -> float:
    """The step size of iteration `step`."""
    return rate.at(step) if isinstance(rate, Decreasing) else rate
