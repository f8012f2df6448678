"""Local SEG, extra-step local SGD (Beznosikov et al. 2020; baseline of proxskip-vip.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from fedsys.algorithms.averaging import AveragedAlgorithm, AveragedState, running_mean
from fedsys.communication import Sync
from fedsys.problems import Theory, Variational


@dataclass(frozen=True)
class LocalSEG(AveragedAlgorithm):
    """z' = z - lr F(z; xi),  z <- z - lr F(z'; xi'); only z is averaged, every K steps.

    LESGD differs: it averages the half point of the communication step too. x_o is the mean of the
    half points.

    Theory: lr = 1 / (21 K L).

    Args:
        lr: the step size, or "theory".
        local_steps: K, the steps of a round.
    """

    needs_all_clients: ClassVar[str] = ""

    def init(self, oracle: Variational, sync: Sync) -> AveragedState:
        """All clients start from the same point."""
        return AveragedState(oracle.z0, oracle.z0)

    def step(self, s: AveragedState, oracle: Variational, sync: Sync) -> AveragedState:
        """The extra step and the step, with independent samples."""
        half = oracle.prox(s.z - self.lr * oracle.operator(s.z, oracle.draw()), self.lr)
        z = oracle.prox(s.z - self.lr * oracle.operator(half, oracle.draw()), self.lr)
        return AveragedState(sync(z), running_mean(s.x_o, half, oracle.step))

    def tuned(self, theory: Theory) -> Self:
        """1 / (21 K L)."""
        return self.fill(theory, lr=lambda c: 1 / (21 * self.local_steps * c.L))
