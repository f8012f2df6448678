"""Gradient descent-ascent and extra-gradient with communication in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from fedsys.algorithms.lesgd import LESGD
from fedsys.algorithms.lsgd import LSGD
from fedsys.problems import Theory


@dataclass(frozen=True)
class GDA(LSGD):
    """z <- z - lr F(z), F the mean over all clients; LSGD with K = 1.

    Theory: lr = 1 / (2 ell) with ell the co-coercivity of the mean operator.
    """

    local_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.local_steps == 1, "local_steps", "1: it communicates every step")

    def tuned(self, theory: Theory) -> Self:
        """1 / (2 ell)."""
        return self.fill(theory, lr=lambda c: 1 / (2 * c.beta))


@dataclass(frozen=True)
class EG(LESGD):
    """z' = z - lr F(z),  z <- z - lr F(z'); LESGD with K = 1.

    Theory: lr = 1 / (4 L).
    """

    local_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.local_steps == 1, "local_steps", "1: it communicates every step")

    def tuned(self, theory: Theory) -> Self:
        """1 / (4 L)."""
        return self.fill(theory, lr=lambda c: 1 / (4 * c.L))
