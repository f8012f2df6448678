"""FedBiO and FedBiOAcc: local bilevel optimisation.

Junyi Li, Feihu Huang, Heng Huang. Local Stochastic Bilevel Optimization with Momentum-Based
Variance Reduction. 2022. arXiv:2205.01608.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import State, fill_in
from fedsys.core.constants import Theory
from fedsys.core.oracles import Bilevel
from fedsys.core.periodic import PeriodicAlgorithm
from fedsys.core.schedules import FromTheory, Rate, at
from fedsys.core.sync import Sync
from fedsys.problems import Hypergradient, NeumannHypergradient
from fedsys.theory import fedbio


@dataclass(frozen=True)
class BilevelState(State):
    """The outer variable x, which clients share, and the inner y, which each keeps to itself."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class _TwoStages(PeriodicAlgorithm[Bilevel, BilevelState]):
    """The common part of FedBiO and FedBiOAcc: step sizes, hypergradient and a second stage.

    In the second stage x is fixed, and one y for all clients is fitted from the start by FedAvg on
    g (Section 6): it is for x that are weights.
    """

    lr: Rate = 0.1
    inner_lr: Rate = 0.1
    hypergradient: Hypergradient = field(default_factory=NeumannHypergradient)
    fit_from: int = 0
    fit_lr: Rate = 0.1
    local_steps: int = 5

    kind: ClassVar[str] = "bilevel"
    measures: ClassVar[bool] = True
    full_participation: ClassVar[str | None] = (
        "a client keeps its inner variable from round to round"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "inner_lr", "fit_lr")
        whole_rounds = self.fit_from >= 0 and self.fit_from % self.local_steps == 0
        rule = f"0, or a multiple of local_steps={self.local_steps}"
        self._require(whole_rounds, "fit_from", rule)

    def measured(self, oracle: Bilevel, sync: Sync) -> Self:
        """Return the same algorithm with a measured step of its Neumann series."""
        way = self.hypergradient
        if not isinstance(way, NeumannHypergradient):
            return self
        return replace(self, hypergradient=way.measured(type(self).__name__, oracle, sync))

    def _fits(self, oracle: Bilevel) -> bool:
        return 0 < self.fit_from <= oracle.step

    def _fit(self, s: BilevelState, oracle: Bilevel, sync: Sync) -> BilevelState:
        """A step of the second stage."""
        y = oracle.y0 if oracle.step == self.fit_from else s.y
        y = sync(y - at(self.fit_lr, oracle.step) * oracle.inner_grad(s.x, y, oracle.draw()))
        return replace(s, y=y)

    @override
    def private_size(self, oracle: Bilevel, steps: int) -> int:
        return 0 if 0 < self.fit_from < steps else oracle.y0.shape[1]

    @override
    def solution(self, s: BilevelState) -> Tensor:
        return torch.cat([s.x, s.y], dim=1)


@dataclass(frozen=True)
class FedBiO(_TwoStages):
    """FedBiO of Li, Huang and Huang (2022), arXiv:2205.01608, Algorithm 1.

        y_m <- y_m - inner_lr grad_y g_m(x_m, y_m),    x_m <- x_m - lr Phi_m(x_m, y_m)

    x is averaged every I steps; y stays with its client.

    Theory (Theorem 5.1): inner_lr below 1/L and lr = delta / T^(1/3), with the largest delta that
    it allows. It is for exact hypergradients of full data.

    Args:
        lr: eta, the step size of x, a number, a schedule or "theory".
        inner_lr: gamma, the step size of y, a number, a schedule or "theory".
        hypergradient: how Phi is computed.
        fit_from: the iteration from which x is fixed and one y is fitted; 0: never.
        fit_lr: the step size of that fit, a number or a schedule.
        local_steps: I, the number of steps of a round.
    """

    lr: Rate | FromTheory = 0.1  # type: ignore[assignment]
    inner_lr: Rate | FromTheory = 0.1  # type: ignore[assignment]

    term_maps: ClassVar[tuple[str, ...]] = ("prox_x",)

    @override
    def init(self, oracle: Bilevel, sync: Sync) -> BilevelState:
        return BilevelState(oracle.x0, oracle.y0)

    @override
    def tuned(self, theory: Theory) -> Self:
        rounds, _ = theory.size(self.local_steps)
        tuned = fill_in(self, theory, inner_lr=fedbio.inner_step)
        gamma, local_steps = tuned._highest("inner_lr", 0.0), self.local_steps
        steps = rounds * local_steps
        return fill_in(tuned, theory, lr=lambda c: fedbio.outer_step(c, gamma, local_steps, steps))

    @override
    def step(self, s: BilevelState, oracle: Bilevel, sync: Sync) -> BilevelState:
        if self._fits(oracle):
            return self._fit(s, oracle, sync)
        omega = oracle.inner_grad(s.x, s.y, oracle.draw())
        nu = self.hypergradient(oracle, s.x, s.y, self.hypergradient.draw(oracle))
        lr, inner_lr = at(self.lr, oracle.step), at(self.inner_lr, oracle.step)
        y = s.y - inner_lr * omega
        x = sync(oracle.prox_x(s.x - lr * nu, lr))
        return BilevelState(x, y)


@dataclass(frozen=True)
class AcceleratedBilevelState(BilevelState):
    """Also the point of the step before, and the estimates of the two gradients there."""

    x_old: Tensor
    y_old: Tensor
    nu: Tensor
    omega: Tensor


@dataclass(frozen=True)
class FedBiOAcc(_TwoStages):
    """FedBiOAcc of Li, Huang and Huang (2022), arXiv:2205.01608, Algorithm 2.

    FedBiO with momentum-based variance reduction of both gradients:

        omega_t = grad_y g(z_t; B_y) + (1 - c_omega alpha^2) (omega - grad_y g(z_{t-1}; B_y))
        nu_t = Phi(z_t; B_x) + (1 - c_nu alpha^2) (nu - Phi(z_{t-1}; B_x)),  alpha of step t - 1
        y <- y - inner_lr alpha_t omega_t,  x <- x - lr alpha_t nu_t,
        alpha_t = delta / (u + sigma^2 t)^(1/3)

    A round averages nu_t and x_{t+1}, and x_t, which the next differences of both estimates use.

    Args:
        lr: eta, a number or a schedule.
        inner_lr: gamma, a number or a schedule.
        hypergradient: how Phi is computed; both points of a difference take the same draws.
        delta: of alpha.
        u: of alpha.
        sigma: of alpha.
        c_nu: of the momentum of nu, a number or a schedule.
        c_omega: of the momentum of omega, a number or a schedule.
        old_point: whether a round averages x_t too: "mean" (the paper) or "local" (which does not
            subtract gradients at a point where they were never taken).
        fit_from: the iteration from which x is fixed and one y is fitted; 0: never.
        fit_lr: the step size of that fit, a number or a schedule.
        local_steps: I, the number of steps of a round.
    """

    lr: Rate = 5.0
    inner_lr: Rate = 5.0
    delta: float = 0.1
    u: float = 1.0
    sigma: float = 1.0
    c_nu: Rate = 1.0
    c_omega: Rate = 1.0
    old_point: str = "mean"

    term_maps: ClassVar[tuple[str, ...]] = ("prox_x",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("delta", "u", "sigma", "c_nu", "c_omega")
        self._require(self.old_point in ("mean", "local"), "old_point", "mean or local")

    @override
    def init(self, oracle: Bilevel, sync: Sync) -> AcceleratedBilevelState:
        x, y = oracle.x0, oracle.y0
        return AcceleratedBilevelState(x, y, x, y, torch.zeros_like(x), torch.zeros_like(y))

    @override
    def step(self, s: BilevelState, oracle: Bilevel, sync: Sync) -> BilevelState:
        if self._fits(oracle):
            return self._fit(s, oracle, sync)
        assert isinstance(s, AcceleratedBilevelState)
        omega, nu = self._estimates(s, oracle)
        alpha = self._alpha(oracle.step + 1)
        lr, inner_lr = at(self.lr, oracle.step), at(self.inner_lr, oracle.step)
        y = s.y - inner_lr * alpha * omega
        x = oracle.prox_x(s.x - lr * alpha * nu, lr * alpha)
        x_old = s.x
        if self.old_point == "mean":
            x_old, nu, x = sync(x_old, nu, x)
        else:
            nu, x = sync(nu, x)
        return AcceleratedBilevelState(x, y, x_old, s.y, nu, omega)

    def _estimates(self, s: AcceleratedBilevelState, oracle: Bilevel) -> tuple[Tensor, Tensor]:
        """omega and nu of lines 5 to 11."""
        B_y, B_x = oracle.draw(), self.hypergradient.draw(oracle)
        omega = oracle.inner_grad(s.x, s.y, B_y)
        nu = self.hypergradient(oracle, s.x, s.y, B_x)
        if oracle.step == 0:
            return omega, nu
        alpha = self._alpha(oracle.step)
        c_nu, c_omega = at(self.c_nu, oracle.step), at(self.c_omega, oracle.step)
        omega_old = oracle.inner_grad(s.x_old, s.y_old, B_y)
        nu_old = self.hypergradient(oracle, s.x_old, s.y_old, B_x)
        return (
            omega + (1 - c_omega * alpha**2) * (s.omega - omega_old),
            nu + (1 - c_nu * alpha**2) * (s.nu - nu_old),
        )

    def _alpha(self, t: int) -> float:
        """alpha_t, with the paper's t = 1, 2, ..."""
        return float(self.delta / (self.u + self.sigma**2 * t) ** (1 / 3))
