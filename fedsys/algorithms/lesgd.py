"""LESGD, local extra-SGD (faster-rates-federated-vi.txt, eq. 4 and Appendix H)."""

from __future__ import annotations

from dataclasses import dataclass
from math import e, sqrt
from typing import ClassVar, Self

from fedsys.algorithms.averaging import AveragedAlgorithm, AveragedState, running_mean
from fedsys.algorithms.terms_of_bounds import over, rate
from fedsys.communication import Sync
from fedsys.problems import Theory, Variational


@dataclass(frozen=True)
class LESGD(AveragedAlgorithm):
    """x_t = z_{t-1} - lr V(z_{t-1}; xi),  z_t = z_{t-1} - lr V(x_t; xi').

    On a communication step x_t is averaged, every client evaluates at the common x_t, and then z_t
    is averaged: two exchanges.

    Theory: Theorem 1; Theorem 2 for an affine operator; Theorem 24 for clients that differ. (Their
    1/sqrt(14 K L) is read as 1/(sqrt(14 K) L), by units and Remark 1.)

    Args:
        lr: the step size, or "theory".
        theorem: 1, 2, 24, or 0 for the one that fits the problem.
        local_steps: K, the steps of a round.
    """

    theorem: int = 0

    needs_all_clients: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.theorem in (0, 1, 2, 24), "theorem", "one of 0 (choose), 1, 2, 24")

    def init(self, oracle: Variational, sync: Sync) -> AveragedState:
        """All clients start from the same point."""
        return AveragedState(oracle.z0, oracle.z0)

    def step(self, s: AveragedState, oracle: Variational, sync: Sync) -> AveragedState:
        """The extra step and the step, with two independent samples."""
        x = sync(oracle.prox(s.z - self.lr * oracle.operator(s.z, oracle.draw()), self.lr))
        z = sync(oracle.prox(s.z - self.lr * oracle.operator(x, oracle.draw()), self.lr))
        return AveragedState(z, running_mean(s.x_o, x, oracle.step))

    def tuned(self, theory: Theory) -> Self:
        """eta of the theorem."""
        return self.fill(theory, lr=lambda _: self._eta(theory))

    def _theorem_for(self, theory: Theory) -> int:
        fitting = 24 if theory.constants.xi > 0 else 2 if theory.constants.affine else 1
        return self.theorem or fitting

    def _eta(self, theory: Theory) -> float:
        c, K, R, M = theory.constants, self.local_steps, *theory.size(self.local_steps)
        D, L, sigma, xi = c.radius, c.L, c.sigma, c.xi
        noise = rate(K, 2 / 3, R, 1 / 3, sigma, 2 / 3, L, 1 / 3)
        theorem = self._theorem_for(theory)
        if theorem == 24:
            return min(
                1 / (sqrt(K) * L),
                over(D * sqrt(M), sigma * sqrt(K * R)),
                over(rate(D, 2 / 3), noise),
                over(rate(D, 2 / 3), rate(xi, 2 / 3, K, 1, R, 1 / 3, L, 1 / 3)),
                over(D, rate(xi * sigma, 1 / 2, K, 3 / 4, R, 1 / 2)),
                over(D, xi * K * sqrt(R)),
            )
        first = 1 / (sqrt(14 * K) * L) if theorem == 1 else 1 / L
        factor = rate(936, 1 / 3, e, 2 / 3) if theorem == 1 else rate(180, 1 / 3)
        return min(
            first,
            over(D * sqrt(M), sigma * sqrt(6 * K * R)),
            over(rate(D, 2 / 3), factor * noise),
        )

    def bound(self, theory: Theory) -> float | None:
        """Eq. (6) or (7); Theorem 24 states its bound up to a constant only."""
        c, K, R, M = theory.constants, self.local_steps, *theory.size(self.local_steps)
        D, L, sigma = c.radius, c.L, c.sigma
        theorem = self._theorem_for(theory)
        noise = rate(D, 4 / 3, sigma, 2 / 3, L, 1 / 3) / rate(K, 1 / 3, R, 2 / 3)
        average = D * sigma / sqrt(M * K * R)
        if theorem == 24:
            return None
        if theorem == 2:
            return 2 * L * D**2 / (K * R) + 2 * sqrt(6) * average + 20 * noise
        return 12 * L * D**2 / (sqrt(K) * R) + 6 * average + 26 * noise
