"""The length of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsys.core.errors import InputError
from fedsys.core.fields import Checked
from fedsys.core.rounds import CommunicationSchedule


@dataclass(frozen=True)
class Plan(Checked):
    """The length of a run in steps or in rounds, and the number of rounds between two records."""

    steps: int | None = None
    rounds: int | None = None
    evaluate_every: int = 1

    name: ClassVar[str] = "run"

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """Return whether a run of so many steps and rounds has reached its end."""
        return step >= self.steps if self.steps is not None else rounds >= (self.rounds or 0)

    def length(self, schedule: CommunicationSchedule) -> int:
        """Return the steps of the run; their expected number if coins decide on the rounds."""
        if self.steps is not None:
            return self.steps
        return round((self.rounds or 0) * schedule.steps_per_round)
