"""Communication schedules: the iterations in which an algorithm communicates.

An algorithm declares its schedule, and the communicator follows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Every:
    """Communicate in every `local_steps`-th iteration: t+1 = K, 2K, ...

    Args:
        local_steps: K, the iterations of a round.
    """

    local_steps: int = 1

    def communicates(self, step: int) -> bool:
        """Return whether iteration `step` (from 0) is a communication step."""
        return (step + 1) % self.local_steps == 0

    @property
    def steps_per_round(self) -> float:
        """The iterations of a round."""
        return self.local_steps


@dataclass(frozen=True)
class Coins:
    """Communicate when a coin shared by all clients shows heads.

    Args:
        sync: the probability of heads.
        others: the probabilities of further shared coins by name, which a step reads as
            `sync.coin(name)`.
    """

    sync: float
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def steps_per_round(self) -> float:
        """The expected number of iterations of a round."""
        return 1 / self.sync


CommunicationSchedule = Every | Coins
