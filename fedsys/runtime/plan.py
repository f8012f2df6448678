"""How long a run takes."""

from __future__ import annotations

from dataclasses import dataclass

from fedsys.communication import Schedule
from fedsys.errors import InputError


@dataclass(frozen=True)
class Plan:
    """How long to run, in steps or in rounds, and after how many rounds to evaluate."""

    steps: int | None = None
    rounds: int | None = None
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.rounds is None):
            raise InputError(
                f"give steps or rounds, one of the two; got steps={self.steps}, "
                f"rounds={self.rounds}"
            )
        for name in ("steps", "rounds", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")

    def is_over(self, step: int, rounds: int) -> bool:
        """Whether there is nothing left to do."""
        return step >= self.steps if self.steps is not None else rounds >= (self.rounds or 0)

    def length(self, schedule: Schedule) -> int:
        """The steps of the run; those that can be expected, if coins decide on its rounds."""
        if self.steps is not None:
            return self.steps
        return round((self.rounds or 0) * schedule.steps_per_round)
