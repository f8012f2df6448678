"""LSGD, local SGD on an operator (faster-rates-federated-vi.txt, eq. 11)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf, sqrt
from typing import ClassVar, Self

from fedsys.algorithms.averaging import AveragedAlgorithm, AveragedState, running_mean
from fedsys.algorithms.terms_of_bounds import over, rate
from fedsys.communication import Sync
from fedsys.errors import InputError
from fedsys.problems import Theory, Variational


@dataclass(frozen=True)
class LSGD(AveragedAlgorithm):
    """x_t = x_{t-1} - lr V(x_{t-1}; xi), averaged over the clients every K steps.

    Theory: Theorem 6, for co-coercive operators. Without co-coercivity it may diverge.

    Args:
        lr: the step size, or "theory".
        local_steps: K, the steps of a round.
    """

    needs_all_clients: ClassVar[str] = ""

    def init(self, oracle: Variational, sync: Sync) -> AveragedState:
        """All clients start from the same point."""
        return AveragedState(oracle.z0, oracle.z0)

    def step(self, s: AveragedState, oracle: Variational, sync: Sync) -> AveragedState:
        """One step."""
        x = s.z - self.lr * oracle.operator(s.z, oracle.draw())
        x = sync(oracle.prox(x, self.lr))
        return AveragedState(x, running_mean(s.x_o, x, oracle.step))

    def tuned(self, theory: Theory) -> Self:
        """eta of Theorem 6."""
        return self.fill(theory, lr=lambda _: self._eta(theory))

    def _eta(self, theory: Theory) -> float:
        c, K, R, M = theory.constants, self.local_steps, *theory.size(self.local_steps)
        if isinf(c.beta):
            raise InputError(
                "LSGD: lr=theory (Theorem 6) needs a co-coercive operator and this one is not; "
                "give algorithm.lr, or use algorithm=lesgd"
            )
        D, L, sigma = c.radius, c.L, c.sigma
        return min(
            1 / c.beta,
            over(D * sqrt(M), sqrt(K * R) * sigma),
            over(rate(D, 2 / 3), sqrt(2) * rate(K, 2 / 3, R, 1 / 3, L, 1 / 3, sigma, 2 / 3)),
        )

    def bound(self, theory: Theory) -> float | None:
        """Eq. (12)."""
        c, K, R, M = theory.constants, self.local_steps, *theory.size(self.local_steps)
        if c.xi > 0 or isinf(c.beta):
            return None
        D, L, sigma = c.radius, c.L, c.sigma
        return (
            4 * c.beta * D**2 / (K * R)
            + 4 * sigma * D / sqrt(M * K * R)
            + 8 * rate(D, 4 / 3, L, 1 / 3, sigma, 2 / 3) / rate(K, 1 / 3, R, 2 / 3)
        )
