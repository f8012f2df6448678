"""FedBiO and FedBiOAcc, local bilevel optimisation (fedbio.txt, Algorithms 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedsys.algorithms.algorithm import PeriodicAlgorithm, State
from fedsys.communication import Sync
from fedsys.problems import Bilevel, Hypergradient, NeumannHypergradient


@dataclass(frozen=True)
class BilevelState(State):
    """The outer variable x, which clients share, and the inner y, which each keeps to itself."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class _TwoStages(PeriodicAlgorithm[Bilevel, BilevelState]):
    """What both methods share: steps, hypergradient, and a second stage for x that are weights.

    In it x is fixed, and one y for all clients is fitted from the start by FedAvg on g (fedbio.txt,
    section 6).
    """

    lr: float = 0.1
    inner_lr: float = 0.1
    hypergradient: Hypergradient = field(default_factory=NeumannHypergradient)
    fit_from: int = 0
    fit_lr: float = 0.1

    kind: ClassVar[str] = "bilevel"
    needs_all_clients: ClassVar[str] = "a client keeps its inner variable from round to round"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "inner_lr", "fit_lr")
        whole_rounds = self.fit_from >= 0 and self.fit_from % self.local_steps == 0
        rule = f"0, or a multiple of local_steps={self.local_steps}"
        self._require(whole_rounds, "fit_from", rule)

    def _fits(self, oracle: Bilevel) -> bool:
        return 0 < self.fit_from <= oracle.step

    def _fit(self, s: BilevelState, oracle: Bilevel, sync: Sync) -> BilevelState:
        """A step of the second stage."""
        y = oracle.y0 if oracle.step == self.fit_from else s.y
        y = sync(y - self.fit_lr * oracle.inner_grad(s.x, y, oracle.draw()))
        return replace(s, y=y)

    def solution(self, s: BilevelState) -> Tensor:
        """z = (x, y); at the mean y for metrics that need a model."""
        return torch.cat([s.x, s.y], dim=1)


@dataclass(frozen=True)
class FedBiO(_TwoStages):
    """Gradient steps of y, hypergradient steps of x; x is averaged every I steps.

        y_m <- y_m - inner_lr grad_y g_m(x_m, y_m),    x_m <- x_m - lr Phi_m(x_m, y_m)

    Args:
        lr: eta, the step of x.
        inner_lr: gamma, the step of y.
        hypergradient: how Phi is computed.
        fit_from: the iteration from which x is fixed and one y is fitted; 0: never.
        fit_lr: the step of that fit.
        local_steps: I, the steps of a round.
    """

    def init(self, oracle: Bilevel, sync: Sync) -> BilevelState:
        """All clients start from the same point."""
        return BilevelState(oracle.x0, oracle.y0)

    def step(self, s: BilevelState, oracle: Bilevel, sync: Sync) -> BilevelState:
        """One step of both variables at the old point."""
        if self._fits(oracle):
            return self._fit(s, oracle, sync)
        omega = oracle.inner_grad(s.x, s.y, oracle.draw())
        nu = self.hypergradient(oracle, s.x, s.y, self.hypergradient.draw(oracle))
        y = s.y - self.inner_lr * omega
        x = sync(oracle.prox_x(s.x - self.lr * nu, self.lr))
        return BilevelState(x, y)


@dataclass(frozen=True)
class MomentumState(BilevelState):
    """Also the point of the step before, and the estimates of the two gradients there."""

    x_old: Tensor
    y_old: Tensor
    nu: Tensor
    omega: Tensor


@dataclass(frozen=True)
class FedBiOAcc(_TwoStages):
    """FedBiO with momentum-based variance reduction of both gradients.

        omega_t = grad_y g(z_t; B_y) + (1 - c_omega alpha^2) (omega - grad_y g(z_{t-1}; B_y))
        nu_t = Phi(z_t; B_x) + (1 - c_nu alpha^2) (nu - Phi(z_{t-1}; B_x)),  alpha of step t - 1
        y <- y - inner_lr alpha_t omega_t,  x <- x - lr alpha_t nu_t,
        alpha_t = delta / (u + sigma^2 t)^(1/3)

    A round averages nu_t and x_{t+1}, and x_t, which the next differences of both estimates use.

    Args:
        lr: eta.
        inner_lr: gamma.
        hypergradient: how Phi is computed; both points of a difference take the same draws.
        delta: of alpha.
        u: of alpha.
        sigma: of alpha.
        c_nu: of the momentum of nu.
        c_omega: of the momentum of omega.
        old_point: whether a round averages x_t too: "mean" (the paper) or "local" (which does not
            subtract gradients at a point where they were never taken).
        fit_from: the iteration from which x is fixed and one y is fitted; 0: never.
        fit_lr: the step of that fit.
        local_steps: I, the steps of a round.
    """

    delta: float = 0.1
    u: float = 1.0
    sigma: float = 1.0
    c_nu: float = 1.0
    c_omega: float = 1.0
    old_point: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("delta", "u", "sigma", "c_nu", "c_omega")
        self._require(self.old_point in ("mean", "local"), "old_point", "mean or local")

    def init(self, oracle: Bilevel, sync: Sync) -> MomentumState:
        """All clients start from the same point; the estimates are made in the first step."""
        x, y = oracle.x0, oracle.y0
        return MomentumState(x, y, x, y, torch.zeros_like(x), torch.zeros_like(y))

    def step(self, s: BilevelState, oracle: Bilevel, sync: Sync) -> BilevelState:
        """Estimates, then a step of both variables."""
        if self._fits(oracle):
            return self._fit(s, oracle, sync)
        assert isinstance(s, MomentumState)
        omega, nu = self._estimates(s, oracle)
        alpha = self._alpha(oracle.step + 1)
        y = s.y - self.inner_lr * alpha * omega
        x = oracle.prox_x(s.x - self.lr * alpha * nu, self.lr * alpha)
        x_old = s.x
        if self.old_point == "mean":
            x_old, nu, x = sync(x_old, nu, x)
        else:
            nu, x = sync(nu, x)
        return MomentumState(x, y, x_old, s.y, nu, omega)

    def _estimates(self, s: MomentumState, oracle: Bilevel) -> tuple[Tensor, Tensor]:
        """omega and nu of lines 5 to 11."""
        B_y, B_x = oracle.draw(), self.hypergradient.draw(oracle)
        omega = oracle.inner_grad(s.x, s.y, B_y)
        nu = self.hypergradient(oracle, s.x, s.y, B_x)
        if oracle.step == 0:
            return omega, nu
        alpha = self._alpha(oracle.step)
        omega_old = oracle.inner_grad(s.x_old, s.y_old, B_y)
        nu_old = self.hypergradient(oracle, s.x_old, s.y_old, B_x)
        return (
            omega + (1 - self.c_omega * alpha**2) * (s.omega - omega_old),
            nu + (1 - self.c_nu * alpha**2) * (s.nu - nu_old),
        )

    def _alpha(self, t: int) -> float:
        """alpha_t, with the paper's t = 1, 2, ..."""
        return float(self.delta / (self.u + self.sigma**2 * t) ** (1 / 3))
