"""ProxSkip-VIP-FL and ProxSkip-L-SVRGDA-FL (proxskip-vip.txt, Algorithms 2 and 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedsys.algorithms.algorithm import Algorithm, AnyState, State
from fedsys.algorithms.averaging import running_mean
from fedsys.algorithms.rates import THEORY
from fedsys.communication import Coins, Schedule, Sync
from fedsys.problems import Constants, Theory, Variational


@dataclass(frozen=True)
class ProxSkipState(State):
    """The point x and the control variate h, which tends to F_i(z*)."""

    x: Tensor
    h: Tensor


@dataclass(frozen=True)
class _CoinFlipping(Algorithm[Variational, AnyState]):
    """What both methods share: step size, the chance of communication, and the local update."""

    lr: float = THEORY
    p: float = THEORY
    cocoercivity: str = "spectral"
    operator_scale: float = 1.0

    kind: ClassVar[str] = "variational"
    needs_all_clients: ClassVar[str] = "its control variates sum to zero over all of them"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "operator_scale")
        self._require_chance("p")
        known = self.cocoercivity in ("spectral", "exact")
        self._require(known, "cocoercivity", "spectral or exact")

    @property
    def schedule(self) -> Schedule:
        """A shared coin of chance p."""
        return Coins(self.p)

    def _update(
        self, x: Tensor, h: Tensor, g: Tensor, oracle: Variational, sync: Sync
    ) -> tuple[Tensor, Tensor]:
        """Lines 4 to 11: a local step with control variate, and the average if the coin says so.

        The factor of the last line is p / lr; the p / 2 of the printed box is a slip.
        """
        if self.operator_scale != 1:
            g = self.operator_scale * g
        x_hat = torch.sub(x, g, alpha=self.lr).add_(h, alpha=self.lr)
        if not sync:
            return x_hat, h
        sent = torch.sub(x_hat, h, alpha=self.lr / self.p)
        x_new = oracle.prox(sync(sent), self.lr / self.p)
        # h + p/lr (x_new - x_hat), which is p/lr (x_new - sent): in place, and sums to zero better.
        return x_new, (x_new - sent).mul_(self.p / self.lr)

    def _ell(self, c: Constants, single_samples: bool) -> float:
        if single_samples:
            exact, spectral = c.ell_samples_exact, c.ell_samples_spectral
        else:
            exact, spectral = c.ell_exact, c.ell_spectral
        return exact if self.cocoercivity == "exact" else spectral


@dataclass(frozen=True)
class _ProxSkip(_CoinFlipping[AnyState]):
    """The step sizes of ProxSkip, with and without an average."""

    def tuned(self, theory: Theory) -> Self:
        """gamma and p of Table 3."""
        sampled = theory.finite_sum
        tuned = self.fill(theory, lr=lambda c: min(0.5 / self._ell(c, sampled), 0.5 / c.mu))
        return tuned.fill(theory, p=lambda c: min(1.0, (tuned.lr * c.mu) ** 0.5))


@dataclass(frozen=True)
class ProxSkip(_ProxSkip[ProxSkipState]):
    """Local steps with a control variate; the average is taken with probability p.

        x^ = x - lr (g(x) - h),  x+ = mean(x^ - lr/p h) if heads else x^,  h+ = h + p/lr (x+ - x^)

    Theory: Corollary 3.6 and Table 3, lr = 1 / (2 max_i ell_i) with the full operator and
    1 / (2 max_ij ell_ij) with single samples; p = sqrt(lr mu).

    Args:
        lr: gamma, or "theory".
        p: the chance of communication, or "theory".
        cocoercivity: which ell the theory uses, the papers' "spectral" one or the "exact" one.
        operator_scale: a factor on the operator; the authors' stochastic runs have 1/n.
    """

    def init(self, oracle: Variational, sync: Sync) -> ProxSkipState:
        """h_0 = 0."""
        return ProxSkipState(oracle.z0, torch.zeros_like(oracle.z0))

    def step(self, s: ProxSkipState, oracle: Variational, sync: Sync) -> ProxSkipState:
        """One iteration of Algorithm 2."""
        g = oracle.operator(s.x, oracle.draw())
        x, h = self._update(s.x, s.h, g, oracle, sync)
        return ProxSkipState(x, h)

    def solution(self, s: ProxSkipState) -> Tensor:
        """x."""
        return s.x


@dataclass(frozen=True)
class AverageState(ProxSkipState):
    """x, h, and x_o = the mean of x_1, ..., x_t."""

    x_o: Tensor


@dataclass(frozen=True)
class ProxSkipAverage(_ProxSkip[AverageState]):
    """ProxSkip, and the average of its points, which is evaluated too.

    For games without strong monotonicity, such as matrix games, where the points themselves need
    not converge; Figure 8 shows the gap of the average.

    Args:
        lr: gamma, or "theory".
        p: the chance of communication, or "theory".
        cocoercivity: which ell the theory uses, the papers' "spectral" one or the "exact" one.
        operator_scale: a factor on the operator.
    """

    def init(self, oracle: Variational, sync: Sync) -> AverageState:
        """h_0 = 0."""
        return AverageState(oracle.z0, torch.zeros_like(oracle.z0), oracle.z0)

    def step(self, s: AverageState, oracle: Variational, sync: Sync) -> AverageState:
        """One iteration of Algorithm 2."""
        g = oracle.operator(s.x, oracle.draw())
        x, h = self._update(s.x, s.h, g, oracle, sync)
        return AverageState(x, h, running_mean(s.x_o, x, oracle.step))

    def solution(self, s: AverageState) -> Tensor:
        """x."""
        return s.x

    def outputs(self, s: AverageState) -> dict[str, Tensor]:
        """The last point and the average."""
        return {"": s.x, "average": s.x_o}


@dataclass(frozen=True)
class SVRGState(State):
    """The point x, the control variate h, the reference point w and F_i(w)."""

    x: Tensor
    h: Tensor
    w: Tensor
    F_w: Tensor


@dataclass(frozen=True)
class ProxSkipLSVRGDA(_CoinFlipping[SVRGState]):
    """ProxSkip with the loopless variance-reduced estimator; two shared coins.

        g = F_j(x) - F_j(w) + F(w),   w+ = x if the second coin shows heads else w

    Theory: Corollary 3.9, lr = min(1/mu, 1/(6 ell)), p = sqrt(lr mu), q = 2 lr mu, with
    ell = max_ij ell_ij.

    Args:
        lr: gamma, or "theory".
        p: the chance of communication, or "theory".
        q: the chance of a new reference point, or "theory".
        cocoercivity: which ell the theory uses, the papers' "spectral" one or the "exact" one.
        operator_scale: a factor on the operator; the authors' runs have 1/n.
    """

    q: float = THEORY

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_chance("q")

    @property
    def schedule(self) -> Schedule:
        """Two shared coins."""
        return Coins(self.p, {"reference": self.q})

    def init(self, oracle: Variational, sync: Sync) -> SVRGState:
        """w_0 = x_0 and h_0 = 0."""
        z = oracle.z0
        return SVRGState(z, torch.zeros_like(z), z, oracle.full_operator(z))

    def step(self, s: SVRGState, oracle: Variational, sync: Sync) -> SVRGState:
        """One iteration of Algorithm 4; the new reference is x before the step."""
        j = oracle.draw()
        g = oracle.operator(s.x, j) - oracle.operator(s.w, j) + s.F_w
        x, h = self._update(s.x, s.h, g, oracle, sync)
        if sync.coin("reference"):
            return SVRGState(x, h, s.x, oracle.full_operator(s.x))
        return SVRGState(x, h, s.w, s.F_w)

    def solution(self, s: SVRGState) -> Tensor:
        """x."""
        return s.x

    def tuned(self, theory: Theory) -> Self:
        """gamma, p and q of Corollary 3.9."""
        tuned = self.fill(theory, lr=lambda c: min(1 / c.mu, 1 / (6 * self._ell(c, True))))
        return tuned.fill(
            theory,
            p=lambda c: min(1.0, (tuned.lr * c.mu) ** 0.5),
            q=lambda c: min(1.0, 2 * tuned.lr * c.mu),
        )
