"""ProxSkip-VIP-FL and ProxSkip-L-SVRGDA-FL, and with one client ProxSkip-VIP.

Siqi Zhang, Sayantan Choudhury, Sebastian U. Stich, Nicolas Loizou. Communication-Efficient Gradient
Descent-Accent Methods for Distributed Variational Inequalities: Unified Analysis and Local Updates.
ICLR 2024. arXiv:2306.05100.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.variational.estimators import (
    SGDA,
    Estimator,
    FullOperator,
    ProxSkipState,
    Quantised,
)
from fedsys.algorithms.variational.lyapunov import Lyapunov
from fedsys.algorithms.variational.variance_reduced import LSVRG, SAGA
from fedsys.core.algorithm import Algorithm, fill_in
from fedsys.core.arithmetic import add_scaled
from fedsys.core.constants import Theory
from fedsys.core.oracles import Variational
from fedsys.core.rounds import Coins, CommunicationSchedule
from fedsys.core.schedules import THEORY, FromTheory, number
from fedsys.core.sync import Sync
from fedsys.theory import proxskip

ESTIMATORS: dict[str, type[Estimator]] = {
    "sgda": SGDA,
    "full": FullOperator,
    "lsvrg": LSVRG,
    "saga": SAGA,
    "quantised": Quantised,
}
"""The estimators by the name that a configuration can give."""


@dataclass(frozen=True)
class _CoinFlipping(Algorithm[Variational, ProxSkipState]):
    """What both algorithms share: all but the choice of the estimator."""

    lr: float | FromTheory = THEORY
    p: float | FromTheory = THEORY
    cocoercivity: str = "spectral"
    operator_scale: float = 1.0

    kind: ClassVar[str] = "variational"
    full_participation: ClassVar[str | None] = "its control variates sum to zero over all of them"
    term_maps: ClassVar[tuple[str, ...]] = ("prox",)
    stackable: ClassVar[tuple[str, ...] | None] = ("lr", "p")
    constant: ClassVar[Mapping[str, str]] = {
        "lr": "the control variate and its factor p / lr assume a constant step size"
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "operator_scale")
        self._require_chance("p")
        known = self.cocoercivity in ("spectral", "exact")
        self._require(known, "cocoercivity", "spectral or exact")

    @property
    @abstractmethod
    def _estimator(self) -> Estimator: ...

    @property
    @override
    def needs_full_operator(self) -> bool:
        return self._estimator.needs_full_operator

    @property
    @override
    def schedule(self) -> CommunicationSchedule:
        return Coins(_chance(self.p), self._estimator.coins)

    @override
    def init(self, oracle: Variational, sync: Sync) -> ProxSkipState:
        z, estimator = oracle.z0, self._estimator
        return estimator.state(z, torch.zeros_like(z), *estimator.start(oracle))

    @override
    def step(self, s: ProxSkipState, oracle: Variational, sync: Sync) -> ProxSkipState:
        estimator = self._estimator
        g, memory = estimator(s, oracle, sync)
        x, h = self._update(s.x, s.h, g, oracle, sync)
        return estimator.state(x, h, *memory) if memory else estimator.state(x, h)

    @override
    def solution(self, s: ProxSkipState) -> Tensor:
        return s.x

    @override
    def tuned(self, theory: Theory) -> Self:
        kind, estimator = self.cocoercivity, self._estimator
        tuned = fill_in(self, theory, lr=lambda c: estimator.step_size(theory, kind))
        gamma = number(tuned.lr)
        return fill_in(tuned, theory, p=lambda c: proxskip.communication_chance(gamma, c.mu))

    def guarantee(self, theory: Theory) -> Lyapunov | None:
        """Return V_t and the bound of Theorem 3.1; None if it does not cover the run."""
        exact = theory.exact_means and theory.constants.exact
        if not exact or self.operator_scale != 1:
            return None
        key, gamma, p = self._estimator.key_constants(theory), number(self.lr), number(self.p)
        bound = proxskip.lyapunov_bound(key, theory.constants.mu, gamma, p)
        if bound is None:
            return None
        return Lyapunov(self._estimator, bound, gamma, p, key.weight, theory.clients)

    def _update(
        self, x: Tensor, h: Tensor, g: Tensor, oracle: Variational, sync: Sync
    ) -> tuple[Tensor, Tensor]:
        """Lines 4 to 11: a local step with control variate, and the average if the coin says so.

        The factor of the last line is p / lr; the p / 2 of the printed box is a slip.
        """
        lr, p = number(self.lr), number(self.p)
        if self.operator_scale != 1:
            g = self.operator_scale * g
        x_hat = add_scaled(x, g, -lr)
        x_hat = add_scaled(x_hat, h, lr, out=x_hat)
        if not sync:
            return x_hat, h
        sent = add_scaled(x_hat, h, -lr / p)
        x_new = oracle.prox(sync(sent), lr / p)
        # h + p/lr (x_new - x_hat), which is p/lr (x_new - sent): in place, and sums to zero better.
        return x_new, (x_new - sent).mul_(p / lr)


@dataclass(frozen=True)
class ProxSkip(_CoinFlipping):
    """ProxSkip-VIP-FL of Zhang et al. (ICLR 2024), arXiv:2306.05100, Algorithm 2.

        x^ = x - lr (g(x) - h),  x+ = mean(x^ - lr/p h) if heads else x^,  h+ = h + p/lr (x+ - x^)

    Local steps with a control variate; the average is taken with probability p. The mean is
    followed by the proximal map of the problem's terms with step lr/p. With one client this is
    ProxSkip-VIP, Algorithm 1, and with the estimator "lsvrg" Algorithm 3.

    Theory: Corollary 3.6 and Table 3, lr = 1 / (2 max_i ell_i) with the full operator and
    1 / (2 max_ij ell_ij) with single samples; p = sqrt(lr mu). Other estimators have the step of
    Corollary 3.2, L-SVRG that of Corollary 3.9. Where Theorem 3.1 covers the run, its records have
    the Lyapunov function V_t and the theorem's bound.

    Args:
        lr: gamma, a number or "theory".
        p: the probability of communication, or "theory".
        cocoercivity: which ell the theory uses, the paper's "spectral" one or the "exact" one. The
            bound always uses the exact one.
        operator_scale: a factor on the operator; the authors' stochastic runs have 1/n.
        averages: whether a run evaluates the mean of the points too (see `Averaged`). In games
            without strong monotonicity, such as matrix games, the points themselves need not
            converge; Figure 8 shows the gap of the average.
        estimator: g, by name: "sgda" (a draw), "full" (all data), "lsvrg", "saga" or "quantised";
            or SGDA, FullOperator, LSVRG, SAGA, Quantised or an Estimator of your own.
    """

    averages: bool = False  # type: ignore[misc]
    estimator: str | Estimator = "sgda"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = isinstance(self.estimator, Estimator) or self.estimator in ESTIMATORS
        self._require(known, "estimator", "an Estimator or one of " + ", ".join(ESTIMATORS))
        object.__setattr__(self, "needs_samples", self._estimator.needs_samples)

    @cached_property
    def _estimator(self) -> Estimator:
        given = self.estimator
        return given if isinstance(given, Estimator) else ESTIMATORS[given]()

    @override
    def awaiting_theory(self) -> list[str]:
        own = [f"estimator.{name}" for name in self._estimator.awaiting_theory()]
        return [*super().awaiting_theory(), *own]

    @override
    def tuned(self, theory: Theory) -> Self:
        tuned = super().tuned(theory)
        if not self._estimator.awaiting_theory():
            return tuned
        return replace(
            tuned, estimator=self._estimator.tuned(number(tuned.lr), theory.constants.mu)
        )


@dataclass(frozen=True)
class ProxSkipLSVRGDA(_CoinFlipping):
    """ProxSkip-L-SVRGDA-FL of Zhang et al. (ICLR 2024), arXiv:2306.05100, Algorithm 4.

        g = F_j(x) - F_j(w) + F(w),   w+ = x if the second coin shows heads else w

    ProxSkip(estimator=LSVRG(q)): the loopless variance-reduced estimator, and two shared coins. The
    new reference point is x before the step. With one client this is Algorithm 3.

    Theory: Corollary 3.9, lr = min(1/mu, 1/(6 ell)), p = sqrt(lr mu), q = 2 lr mu, with
    ell = max_ij ell_ij.

    Args:
        lr: gamma, a number or "theory".
        p: the chance of communication, or "theory".
        q: the chance of a new reference point, or "theory".
        cocoercivity: which ell the theory uses, the paper's "spectral" one or the "exact" one.
        operator_scale: a factor on the operator; the authors' runs have 1/n.
    """

    q: float | FromTheory = THEORY

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_chance("q")

    @cached_property
    def _estimator(self) -> Estimator:
        return LSVRG(self.q)

    @override
    def tuned(self, theory: Theory) -> Self:
        tuned = super().tuned(theory)
        gamma = number(tuned.lr)
        return fill_in(tuned, theory, q=lambda c: proxskip.reference_chance(gamma, c.mu))


def _chance(p: float | FromTheory) -> float:
    """Return the chance of a coin; 1 as long as the theory has not chosen it."""
    return 1.0 if isinstance(p, FromTheory) else p
