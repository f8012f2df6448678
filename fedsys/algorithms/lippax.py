"""LIPPAX and SLIPPAX, local inexact proximal point with extra step.

faster-rates-federated-vi.txt, Algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, e, isinf, log, sqrt
from typing import ClassVar, Self

from torch import Tensor

from fedsys.algorithms.averaging import AveragedAlgorithm, AveragedState, running_mean
from fedsys.algorithms.rates import THEORY
from fedsys.algorithms.terms_of_bounds import over, rate
from fedsys.communication import Sync
from fedsys.problems import Theory, Variational

_CONTRACTION = 3 / 4
"""What an inner step leaves of the squared error at lr = 1/L. The paper's proof claims 1/4, which
would need lr * L <= 0.155; so H is larger than printed and the bounds hold (3/4)^H for 4^-H."""


@dataclass(frozen=True)
class LIPPAX(AveragedAlgorithm):
    """H inner steps towards the proximal point of z_{t-1}, then one step with V at what they found.

        x_l = x_{l-1} - inner_lr (V(x_{l-1}; xi) + (x_{l-1} - z_{t-1}) / lr),  l = 1..H
        z_t = z_{t-1} - lr V(x_H; xi'),  averaged every K steps

    Theory: Theorem 3, or Theorem 4 for a bounded Hessian;
    inner_lr = 1/(lr (L + 1/lr)^2) and H = 2 ln(K R) / ln(4/3).

    Args:
        lr: eta, or "theory".
        inner_lr: gamma, or "theory".
        inner_steps: H, or "theory".
        theorem: 3 or 4.
        local_steps: K, the steps of a round.
    """

    inner_lr: float = THEORY
    inner_steps: float = THEORY
    theorem: int = 3

    theorems: ClassVar[tuple[int, ...]] = (3, 4)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("inner_lr", "inner_steps")
        names = " or ".join(map(str, self.theorems))
        self._require(self.theorem in self.theorems, "theorem", names)

    def init(self, oracle: Variational, sync: Sync) -> AveragedState:
        """All clients start from the same point."""
        return AveragedState(oracle.z0, oracle.z0)

    def step(self, s: AveragedState, oracle: Variational, sync: Sync) -> AveragedState:
        """The inner loop and the outer step, a fresh sample each."""
        x = s.z
        for _ in range(int(self.inner_steps)):
            x = x - self.inner_lr * (self._inner_operator(x, oracle) + (x - s.z) / self.lr)
        z = sync(s.z - self.lr * oracle.operator(x, oracle.draw()))
        return AveragedState(z, running_mean(s.x_o, x, oracle.step))

    def _inner_operator(self, x: Tensor, oracle: Variational) -> Tensor:
        return oracle.operator(x, oracle.draw())

    def tuned(self, theory: Theory) -> Self:
        """eta, gamma and H of the theorem."""
        K, R, _ = self.local_steps, *theory.size(self.local_steps)
        with_eta = self.fill(theory, lr=lambda _: self._eta(theory))
        eta = with_eta.lr
        return with_eta.fill(
            theory,
            inner_lr=lambda c: 1 / (eta * (c.L + 1 / eta) ** 2),
            inner_steps=lambda _: ceil(2 * log(max(2, K * R)) / -log(_CONTRACTION)),
        )

    def _eta(self, theory: Theory) -> float:
        c, K, R, M = theory.constants, self.local_steps, *theory.size(self.local_steps)
        D, L, sigma = c.radius, c.L, c.sigma
        fifth = rate(K, 3 / 5, R, 1 / 5, sigma, 2 / 5, L, 2 / 5)
        third = rate(K, 2 / 3, R, 1 / 3, L, 1 / 3, sigma, 2 / 3)
        first = (1 / L, over(D * sqrt(M), sigma * sqrt(K * R)))
        if self.theorem == 3:
            return min(
                *first,
                over(rate(D, 2 / 5), rate(60 * e, 1 / 5) * fifth),
                over(rate(D, 2 / 3), rate(54 * e, 1 / 3) * third),
                over(D, sigma * sqrt(15 * K * R)),
            )
        return min(
            *first,
            over(rate(D, 2 / 5), fifth),
            over(rate(D, 2 / 3), third),
            over(sqrt(D), rate(K * R, 1 / 4, sigma * L, 1 / 2)),
            over(rate(D, 1 / 3), rate(c.Lambda, 1 / 3, sigma, 2 / 3, K * R, 1 / 6)),
        )

    def bound(self, theory: Theory) -> float | None:
        """Eq. (8) or (10), with the inner error as (3/4)^H."""
        c, K, R, M = theory.constants, self.local_steps, *theory.size(self.local_steps)
        if c.xi > 0 or c.affine or isinf(c.G) or (self.theorem == 4 and isinf(c.Lambda)):
            return None
        D, L, sigma, G = c.radius, c.L, c.sigma, c.G
        H = self.inner_steps
        fifth = rate(D, 8 / 5, sigma * L, 2 / 5) / rate(K, 2 / 5, R, 4 / 5)
        third = rate(D, 4 / 3, L, 1 / 3, sigma, 2 / 3) / rate(K, 1 / 3, R, 2 / 3)
        average = D * sigma / sqrt(M * K * R)
        if self.theorem == 3:
            return (
                L * D**2 / (K * R)
                + 4 * sigma * D / sqrt(K * R)
                + 2 * rate(60 * e, 1 / 5) * fifth
                + 2 * rate(54 * e, 1 / 3) * third
                + 4 * average
                + (60 * e * G**2 * K**2 * L + 30 * G**2) * rate(_CONTRACTION, H)
            )
        lower = rate(D, 3 / 2, sigma * L, 1 / 2) / rate(K * R, 3 / 4)
        curved = rate(D, 5 / 3, c.dim, 1 / 6, c.Lambda, 1 / 3, sigma, 2 / 3) / rate(K * R, 5 / 6)
        inner = 10 * H**2 * c.Lambda**2 * G**4 + 60 * G**2 + 120 * G**2 * K**2
        main = D**2 * L / (K * R) + third + average + fifth + lower + curved
        return 240 * main + inner * rate(_CONTRACTION, H)


@dataclass(frozen=True)
class SLIPPAX(LIPPAX):
    """LIPPAX whose inner steps query V at x + delta s, s standard normal: Gaussian smoothing.

    Theory: Theorem 5, with 1/3 as the power of L in its third term and the term
    D sqrt(M) / (sigma sqrt(K R)) that the other theorems have; delta = lr sigma / sqrt(d).

    Args:
        delta: the radius of smoothing, or "theory"; 0 is LIPPAX.
    """

    delta: float = THEORY
    theorem: int = 5

    theorems: ClassVar[tuple[int, ...]] = (5,)

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = self._awaits_theory("delta") or self.delta >= 0
        self._require(valid, "delta", "at least 0")

    def _inner_operator(self, x: Tensor, oracle: Variational) -> Tensor:
        sample = oracle.draw()
        if self.delta == 0:
            return oracle.operator(x, sample)
        return oracle.operator(x + self.delta * oracle.normal(), sample)

    def tuned(self, theory: Theory) -> Self:
        """eta, gamma, H and delta of the theorem."""
        tuned = super().tuned(theory)
        return tuned.fill(theory, delta=lambda c: tuned.lr * c.sigma / sqrt(c.dim))

    def _eta(self, theory: Theory) -> float:
        c, K, R, M = theory.constants, self.local_steps, *theory.size(self.local_steps)
        D, L, sigma, d = c.radius, c.L, c.sigma, c.dim
        return min(
            1 / L,
            over(D * sqrt(M), sigma * sqrt(K * R)),
            over(sqrt(D), rate(K * R, 1 / 4, L * sigma, 1 / 2, d, 1 / 8)),
            over(rate(D, 2 / 5), rate(sigma * L, 2 / 5, d, 1 / 10, K, 3 / 5, R, 1 / 5)),
            over(rate(D, 2 / 3), rate(K, 2 / 3, R, 1 / 3, sigma, 2 / 3, L, 1 / 3)),
        )

    def bound(self, theory: Theory) -> float | None:
        """Theorem 5 states its bound up to a constant only."""
        return None
