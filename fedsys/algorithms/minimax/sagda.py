"""SAGDA."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.minimax.base import MinimaxAlgorithm, MinimaxState
from fedsys.core.oracles import Minimax
from fedsys.core.schedules import Rate, at
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class SAGDAState(MinimaxState):
    """The players, where they were at the start of the round, and what is added to gradients."""

    x_r: Tensor
    y_r: Tensor
    correction_x: Tensor
    correction_y: Tensor


@dataclass(frozen=True)
class SAGDA(MinimaxAlgorithm[SAGDAState]):
    """SAGDA of Yang, Liu, Zhang and Liu (NeurIPS 2022).

    Local SGDA with control variates of the round's start, and a step of the server.

        x_i <- x_i - lr_x (grad_x f_i(x_i, y_i; xi) - v_x,i + mean v_x),  y likewise, upwards
        x_{r+1} = x_r + server_lr mean(x_i - x_r),   v_i = grad f_i(x_r, y_r; xi_r)

    A round has two exchanges: the points, then the control variates at the new common point.

    Args:
        lr_x: the local step size of the min player, a number or a schedule.
        lr_y: the local step size of the max player, a number or a schedule.
        server_lr: the server's step size for both, a number or a schedule.
        cv_sample: "round": v_i is taken once, with the sample of the round; "step": with the
            sample of each step, as in CDMA, and only its mean once.
        local_steps: K, the number of steps of a round.
    """

    server_lr: Rate = 1.0
    cv_sample: str = "round"

    full_participation: ClassVar[str | None] = "control variates of absent clients go stale"
    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("server_lr")
        self._require(self.cv_sample in ("round", "step"), "cv_sample", "round or step")

    @override
    def init(self, oracle: Minimax, sync: Sync) -> SAGDAState:
        return self._begin_round(oracle.x0, oracle.y0, oracle, sync)

    @override
    def step(self, s: SAGDAState, oracle: Minimax, sync: Sync) -> SAGDAState:
        xi = oracle.draw()
        gx, gy = oracle.grads(s.x, s.y, xi)
        if self.cv_sample == "step":
            own_x, own_y = oracle.grads(s.x_r, s.y_r, xi)
            gx, gy = gx - own_x, gy - own_y
        x, y = self._move(s.x, s.y, gx + s.correction_x, gy + s.correction_y, oracle)
        if not sync:
            return replace(s, x=x, y=y)
        x, y = sync(x, y)
        server_lr = at(self.server_lr, oracle.step)
        x, y = s.x_r + server_lr * (x - s.x_r), s.y_r + server_lr * (y - s.y_r)
        if server_lr > 1:  # beyond the mean of the clients, and possibly out of a constraint
            x, y = oracle.prox_x(x, 0.0), oracle.prox_y(y, 0.0)
        return self._begin_round(x, y, oracle, sync)

    def _begin_round(self, x: Tensor, y: Tensor, oracle: Minimax, sync: Sync) -> SAGDAState:
        vx, vy = oracle.grads(x, y, oracle.draw())
        mean_x, mean_y = sync(vx, vy)
        if self.cv_sample == "round":
            mean_x, mean_y = mean_x - vx, mean_y - vy
        return SAGDAState(x, y, x, y, mean_x, mean_y)
