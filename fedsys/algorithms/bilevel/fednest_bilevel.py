"""FEDNEST in its bilevel form: a lower level that all clients share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.bilevel.fedbio import BilevelState
from fedsys.core.algorithm import Algorithm
from fedsys.core.oracles import SharedBilevel
from fedsys.core.rounds import CommunicationSchedule, Every
from fedsys.core.schedules import Rate, at
from fedsys.core.sync import Sync
from fedsys.problems.bilevel.spectrum import neumann_step


@dataclass(frozen=True)
class FedNestBilevel(Algorithm[SharedBilevel, BilevelState]):
    """FEDNEST of Tarzanagh, Li, Thrampoulidis and Oymak (ICML 2022), arXiv:2205.02215, Algorithm 1.

    min over x of mean_i f_i(x, y(x)), y(x) = argmin of mean_i g_i(x, .). A step is an outer
    iteration: T times FEDINN on y, then FEDIHGP and FEDOUT on x; 2 T + N + 2 exchanges. FEDINN and
    FEDOUT take K local steps from a common point, and average:

        y_i <- y_i - inner_lr (grad_y g_i(x, y_i; zeta) - grad_y g_i(x, y; zeta) + q)
        x_i <- x_i - lr (grad_x f_i(x_i, y; xi) - grad_x f_i(x, y; xi) + h)

    with q = mean_i grad_y g_i(x, y; zeta), h = mean_i (grad_x f_i(x, y; xi) - grad_xy g_i p), and p
    of FEDIHGP, whose every factor is an average over the clients:

        p = neumann_lr sum_{n < N} prod_{j <= n} (I - neumann_lr mean_i grad_yy g_i(x, y; zeta_j))
            mean_i grad_y f_i(x, y; xi)

    Readings of the paper: FEDIHGP draws the number of factors from 0, ..., N - 1 and multiplies by
    N; the sum over all of them is the mean over that draw, with less variance and a fixed number of
    exchanges. The corrections of FEDOUT hold the direct gradient grad_x f_i only, and the indirect
    part is that of the common point. The step sizes are those of one local step (the theorems
    divide by K). grad_x f_i of h and grad_y f_i of p are of one draw. The means q, h and p are of
    draws; they are exact if a draw has all data.

    Args:
        lr: alpha, the step size of FEDOUT, a number or a schedule.
        inner_lr: beta, the step size of FEDINN, a number or a schedule.
        inner_rounds: T.
        terms: N, the number of terms of the Neumann series.
        neumann_lr: 1 / L of the Neumann series; None: measured by power iteration.
        local_steps: K, the local steps for x and for y.
    """

    lr: Rate = 0.1
    inner_lr: Rate = 0.1
    inner_rounds: int = 1
    terms: int = 10
    neumann_lr: float | None = None
    local_steps: int = 5

    kind: ClassVar[str] = "shared_bilevel"
    measures: ClassVar[bool] = True
    term_maps: ClassVar[tuple[str, ...]] = ("prox_x",)
    full_participation: ClassVar[str | None] = (
        "the factors of FEDIHGP are means over clients drawn anew for each exchange, and a round "
        "draws once, so that its inverse Hessian would be biased"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "inner_lr")
        for name in ("inner_rounds", "terms", "local_steps"):
            self._require(getattr(self, name) >= 1, name, "at least 1")
        valid = self.neumann_lr is None or self.neumann_lr > 0
        self._require(valid, "neumann_lr", "positive, or null to measure it")

    @property
    @override
    def schedule(self) -> CommunicationSchedule:
        return Every(1)

    def measured(self, oracle: SharedBilevel, sync: Sync) -> Self:
        """Return the same algorithm with a measured step of its Neumann series."""
        owner, given = type(self).__name__, self.neumann_lr
        if self.terms == 1 and given is not None:
            return self
        return replace(self, neumann_lr=neumann_step(owner, "neumann_lr", given, oracle, sync))

    @override
    def init(self, oracle: SharedBilevel, sync: Sync) -> BilevelState:
        return BilevelState(oracle.x0, oracle.y0)

    @override
    def step(self, s: BilevelState, oracle: SharedBilevel, sync: Sync) -> BilevelState:
        y = s.y
        for _ in range(self.inner_rounds):
            y = self._inner(s.x, y, oracle, sync)
        return BilevelState(self._outer(s.x, y, oracle, sync), y)

    def _inner(self, x: Tensor, y: Tensor, oracle: SharedBilevel, sync: Sync) -> Tensor:
        """FEDINN: K corrected steps from a common y."""
        lr, y_i = at(self.inner_lr, oracle.step), y
        q = sync(oracle.inner_grad(x, y, oracle.draw()))
        for _ in range(self.local_steps):
            zeta = oracle.draw()
            change = oracle.inner_grad(x, y_i, zeta) - oracle.inner_grad(x, y, zeta)
            y_i = y_i - lr * (change + q)
        return sync(y_i)

    def _outer(self, x: Tensor, y: Tensor, oracle: SharedBilevel, sync: Sync) -> Tensor:
        """FEDOUT: K steps from a common x, corrected by the federated hypergradient."""
        lr, x_i = at(self.lr, oracle.step), x
        xi = oracle.outer_draw()
        gx, gy = oracle.outer_grads(x, y, xi)
        p = self._inverse_product(x, y, gy, oracle, sync)
        h = sync(gx - oracle.curvature(x, y, oracle.draw()).cross_product(p))
        for _ in range(self.local_steps):
            xi = oracle.outer_draw()
            change = oracle.outer_grads(x_i, y, xi)[0] - oracle.outer_grads(x, y, xi)[0]
            x_i = oracle.prox_x(x_i - lr * (change + h), lr)
        return sync(x_i)

    def _inverse_product(
        self, x: Tensor, y: Tensor, gy: Tensor, oracle: SharedBilevel, sync: Sync
    ) -> Tensor:
        """FEDIHGP: the inverse of the mean Hessian times the mean of grad_y f_i."""
        lr = self.neumann_lr
        assert lr is not None, "the runner calls FedNestBilevel.measured before the first step"
        term = sync(gy)
        total = term
        for _ in range(self.terms - 1):
            curvature = oracle.curvature(x, y, oracle.draw())
            term = sync(term - lr * curvature.hessian_product(term))
            total = total + term
        return lr * total

    @override
    def solution(self, s: BilevelState) -> Tensor:
        return torch.cat([s.x, s.y], dim=1)
