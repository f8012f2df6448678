"""What was sent: the papers' horizontal axis."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Traffic:
    """Counts of one client's communication so far; equal for all clients and any placement.

    `bytes_up` and `bytes_down` count the vectors and matrices, `bytes_control` the coins that the
    server sends. `seconds_waited` is the time this rank spent inside collectives, `dropped` how
    many contributions were left out because they were not finite.
    """

    rounds: int = 0
    exchanges: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_control: int = 0
    seconds_waited: float = 0.0
    dropped: int = 0

    def as_dict(self) -> dict[str, float]:
        """All counts by name."""
        return asdict(self)
