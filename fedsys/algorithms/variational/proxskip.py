"""ProxSkip-VIP-FL and ProxSkip-L-SVRGDA-FL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import Algorithm, AnyState, State, fill_in
from fedsys.core.arithmetic import add_scaled
from fedsys.core.constants import Constants, Theory
from fedsys.core.oracles import Variational
from fedsys.core.rounds import Coins, CommunicationSchedule
from fedsys.core.schedules import THEORY, FromTheory, number
from fedsys.core.sync import Sync
from fedsys.theory import proxskip


@dataclass(frozen=True)
class ProxSkipState(State):
    """The point x and the control variate h, which tends to F_i(z*)."""

    x: Tensor
    h: Tensor


@dataclass(frozen=True)
class _CoinFlipping(Algorithm[Variational, AnyState]):
    """The step size, the chance of communication, and the local update of both algorithms."""

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
    @override
    def schedule(self) -> CommunicationSchedule:
        return Coins(_chance(self.p))

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

    def _ell(self, c: Constants, single_samples: bool) -> float:
        return proxskip.cocoercivity(c, self.cocoercivity, single_samples)


@dataclass(frozen=True)
class ProxSkip(_CoinFlipping[ProxSkipState]):
    """ProxSkip-VIP-FL of Zhang et al. (ICLR 2024), arXiv:2306.05100, Algorithm 2.

        x^ = x - lr (g(x) - h),  x+ = mean(x^ - lr/p h) if heads else x^,  h+ = h + p/lr (x+ - x^)

    Local steps with a control variate; the average is taken with probability p.

    Theory: Corollary 3.6 and Table 3, lr = 1 / (2 max_i ell_i) with the full operator and
    1 / (2 max_ij ell_ij) with single samples; p = sqrt(lr mu).

    Args:
        lr: gamma, a number or "theory".
        p: the probability of communication, or "theory".
        cocoercivity: which ell the theory uses, the paper's "spectral" one or the "exact" one.
        operator_scale: a factor on the operator; the authors' stochastic runs have 1/n.
        averages: whether a run evaluates the mean of the points too (see `Averaged`). In games
            without strong monotonicity, such as matrix games, the points themselves need not
            converge; Figure 8 shows the gap of the average.
    """

    averages: bool = False  # type: ignore[misc]

    @override
    def init(self, oracle: Variational, sync: Sync) -> ProxSkipState:
        return ProxSkipState(oracle.z0, torch.zeros_like(oracle.z0))

    @override
    def step(self, s: ProxSkipState, oracle: Variational, sync: Sync) -> ProxSkipState:
        g = oracle.operator(s.x, oracle.draw())
        return ProxSkipState(*self._update(s.x, s.h, g, oracle, sync))

    @override
    def solution(self, s: ProxSkipState) -> Tensor:
        return s.x

    @override
    def tuned(self, theory: Theory) -> Self:
        sampled = theory.finite_sum
        tuned = fill_in(
            self, theory, lr=lambda c: proxskip.proxskip_step(self._ell(c, sampled), c.mu)
        )
        gamma = number(tuned.lr)
        return fill_in(tuned, theory, p=lambda c: proxskip.communication_chance(gamma, c.mu))


@dataclass(frozen=True)
class SVRGState(State):
    """The point x, the control variate h, the reference point w and F_i(w)."""

    x: Tensor
    h: Tensor
    w: Tensor
    F_w: Tensor


@dataclass(frozen=True)
class ProxSkipLSVRGDA(_CoinFlipping[SVRGState]):
    """ProxSkip-L-SVRGDA-FL of Zhang et al. (ICLR 2024), arXiv:2306.05100, Algorithm 4.

        g = F_j(x) - F_j(w) + F(w),   w+ = x if the second coin shows heads else w

    ProxSkip with the loopless variance-reduced estimator, and two shared coins. The new reference
    point is x before the step.

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

    @property
    @override
    def needs_full_operator(self) -> bool:
        return True

    @property
    @override
    def schedule(self) -> CommunicationSchedule:
        return Coins(_chance(self.p), {"reference": _chance(self.q)})

    @override
    def init(self, oracle: Variational, sync: Sync) -> SVRGState:
        z = oracle.z0
        return SVRGState(z, torch.zeros_like(z), z, oracle.full_operator(z))

    @override
    def step(self, s: SVRGState, oracle: Variational, sync: Sync) -> SVRGState:
        j = oracle.draw()
        g = oracle.operator(s.x, j) - oracle.operator(s.w, j) + s.F_w
        x, h = self._update(s.x, s.h, g, oracle, sync)
        if sync.coin("reference"):
            return SVRGState(x, h, s.x, oracle.full_operator(s.x))
        return SVRGState(x, h, s.w, s.F_w)

    @override
    def solution(self, s: SVRGState) -> Tensor:
        return s.x

    @override
    def tuned(self, theory: Theory) -> Self:
        tuned = fill_in(self, theory, lr=lambda c: proxskip.svrgda_step(self._ell(c, True), c.mu))
        gamma = number(tuned.lr)
        return fill_in(
            tuned,
            theory,
            p=lambda c: proxskip.communication_chance(gamma, c.mu),
            q=lambda c: proxskip.reference_chance(gamma, c.mu),
        )


def _chance(p: float | FromTheory) -> float:
    """Return the chance of a coin; 1 as long as the theory has not chosen it."""
    return 1.0 if isinstance(p, FromTheory) else p
