"""Local SEG, extra-step local SGD (Beznosikov et al. 2020; baseline of proxskip-vip.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from fedsys.algorithms.algorithm import State
from fedsys.algorithms.variational import VariationalAlgorithm
from fedsys.communication import Sync
from fedsys.problems import Theory, Variational


@dataclass(frozen=True)
class PointState(State):
    """The point."""

    z: Tensor


@dataclass(frozen=True)
class LocalSEG(VariationalAlgorithm[PointState]):
    """z' = z - lr F(z; xi),  z <- z - lr F(z'; xi'); only z is averaged, every K steps.

    LESGD differs: it averages the half point of the communication step too.

    Theory: lr = 1 / (21 K L).

    Args:
        lr: the step size, or "theory".
        local_steps: K, the steps of a round.
    """

    needs_all_clients: ClassVar[str] = ""

    def init(self, oracle: Variational, sync: Sync) -> PointState:
        """All clients start from the same point."""
        return PointState(oracle.z0)

    def step(self, s: PointState, oracle: Variational, sync: Sync) -> PointState:
        """The extra step and the step, with independent samples."""
        half = oracle.prox(s.z - self.lr * oracle.operator(s.z, oracle.draw()), self.lr)
        z = oracle.prox(s.z - self.lr * oracle.operator(half, oracle.draw()), self.lr)
        return PointState(sync(z))

    def solution(self, s: PointState) -> Tensor:
        """z."""
        return s.z

    def tuned(self, theory: Theory) -> Self:
        """1 / (21 K L)."""
        return self.fill(theory, lr=lambda c: 1 / (21 * self.local_steps * c.L))
