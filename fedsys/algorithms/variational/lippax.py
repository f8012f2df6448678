"""LIPPAX and SLIPPAX: local inexact proximal point with extra step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.variational.base import ExtrapolatingPointAlgorithm, PointState
from fedsys.core.algorithm import fill_in
from fedsys.core.arithmetic import descend
from fedsys.core.constants import Theory
from fedsys.core.oracles import Variational
from fedsys.core.schedules import THEORY, FromTheory, Rate, Schedule, at, number
from fedsys.core.sync import Sync
from fedsys.theory import federated_vi


@dataclass(frozen=True)
class LIPPAX(ExtrapolatingPointAlgorithm):
    """LIPPAX of Wang and Kale (2026), arXiv:2602.09164, Algorithm 1.

        x_l = x_{l-1} - inner_lr (V(x_{l-1}; xi) + (x_{l-1} - z_{t-1}) / lr),  l = 1..H
        z_t = z_{t-1} - lr V(x_H; xi'),  averaged every K steps

    The H inner steps approach the proximal point of z_{t-1}. The evaluated mean is that of the x_H.

    Theory: Theorem 3, or Theorem 4 for a bounded Hessian; inner_lr = 1/(lr (L + 1/lr)^2) and
    H = 2 ln(K R) / ln(1/q), q what an inner step leaves of the squared error. See
    `fedsys.theory.federated_vi` for the reading of both theorems.

    Args:
        lr: eta, a number, a schedule or "theory".
        inner_lr: gamma, a number, a schedule or "theory".
        inner_steps: H, or "theory".
        theorem: 3 or 4.
        local_steps: K, the number of steps of a round.
    """

    inner_lr: Rate | FromTheory = THEORY
    inner_steps: float | FromTheory = THEORY
    theorem: int = 3

    theorems: ClassVar[tuple[int, ...]] = (3, 4)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("inner_lr", "inner_steps")
        self._require_divisor("lr")
        names = " or ".join(map(str, self.theorems))
        self._require(self.theorem in self.theorems, "theorem", names)
        self._require_numbers_beside_schedules("lr", ("inner_lr", "inner_steps"))
        self._require_numbers_beside_schedules("inner_lr", ("inner_steps",))

    def _require_numbers_beside_schedules(self, name: str, others: Sequence[str]) -> None:
        """Refuse "theory" for hyperparameters whose theory needs another one to be constant."""
        if isinstance(getattr(self, name), Schedule):
            for other in others:
                given = not self._awaits_theory(other)
                self._require(given, other, f"a number where {name} is a schedule")

    @override
    def step_and_point(
        self, s: PointState, oracle: Variational, sync: Sync
    ) -> tuple[PointState, Tensor]:
        lr, inner_lr = at(self.lr, oracle.step), at(self.inner_lr, oracle.step)
        x = s.z
        for _ in range(int(number(self.inner_steps))):
            x = x - inner_lr * (self._inner_operator(x, oracle) + (x - s.z) / lr)
        z = sync(descend(s.z, oracle.operator(x, oracle.draw()), lr))
        return PointState(z), x

    def _inner_operator(self, x: Tensor, oracle: Variational) -> Tensor:
        return oracle.operator(x, oracle.draw())

    @override
    def tuned(self, theory: Theory) -> Self:
        first = fill_in(self, theory, lr=lambda _: self._eta(theory))
        second = fill_in(
            first, theory, inner_lr=lambda c: federated_vi.inner_step(number(first.lr), c.L)
        )

        def inner_steps(_: object) -> float:
            contraction = second._contraction(theory)
            return federated_vi.inner_steps(theory, self.local_steps, contraction)

        return fill_in(second, theory, inner_steps=inner_steps)

    def _eta(self, theory: Theory) -> float:
        return federated_vi.lippax_step(theory, self.local_steps, self.theorem)

    def _contraction(self, theory: Theory) -> float:
        eta, gamma = number(self.lr), number(self.inner_lr)
        return federated_vi.inner_contraction(eta, gamma, theory.constants.L)

    @override
    def bound(self, theory: Theory) -> float | None:
        K = self.local_steps
        if theory.terms or not theory.covers(K, "lr", "inner_lr", "inner_steps"):
            return None
        numbers = number(self.lr), number(self.inner_lr), number(self.inner_steps)
        return federated_vi.lippax_bound(theory, K, self.theorem, *numbers)


@dataclass(frozen=True)
class SLIPPAX(LIPPAX):
    """SLIPPAX of Wang and Kale (2026), arXiv:2602.09164, Algorithm 2.

    LIPPAX whose inner steps evaluate V at x + delta s, s standard normal: Gaussian smoothing.

    Theory: Theorem 5, which states its bound up to a constant only; delta = lr sigma / d^(1/4).

    Args:
        lr: eta, a number, a schedule or "theory".
        inner_lr: gamma, a number, a schedule or "theory".
        inner_steps: H, or "theory".
        delta: the radius of smoothing, a number, a schedule or "theory"; 0 gives LIPPAX.
        theorem: 5.
        local_steps: K, the number of steps of a round.
    """

    delta: Rate | FromTheory = THEORY
    theorem: int = 5

    theorems: ClassVar[tuple[int, ...]] = (5,)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_not_negative("delta")
        self._require_numbers_beside_schedules("lr", ("delta",))

    @override
    def _inner_operator(self, x: Tensor, oracle: Variational) -> Tensor:
        sample, delta = oracle.draw(), at(self.delta, oracle.step)
        if delta == 0:
            return oracle.operator(x, sample)
        return oracle.operator(x + delta * oracle.normal(), sample)

    @override
    def tuned(self, theory: Theory) -> Self:
        tuned = super().tuned(theory)
        return fill_in(
            tuned,
            theory,
            delta=lambda c: federated_vi.smoothing_radius(number(tuned.lr), c.sigma, c.dim),
        )

    @override
    def _eta(self, theory: Theory) -> float:
        return federated_vi.slippax_step(theory, self.local_steps)

    @override
    def bound(self, theory: Theory) -> float | None:
        return None
