"""When an algorithm communicates; it says so, and its communicator keeps to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Every:
    """Communicate in every `local_steps`-th step: t+1 = K, 2K, ..."""

    local_steps: int = 1

    def communicates(self, step: int) -> bool:
        """Whether iteration `step` (from 0) is a communication step."""
        return (step + 1) % self.local_steps == 0

    @property
    def steps_per_round(self) -> float:
        """K."""
        return self.local_steps


@dataclass(frozen=True)
class Coins:
    """Communicate when a coin shared by all clients shows heads, with probability `sync`.

    `others` are further shared coins by name, which the step reads as `sync.coin(name)`.
    """

    sync: float
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def steps_per_round(self) -> float:
        """How many are to be expected."""
        return 1 / self.sync


Schedule = Every | Coins
