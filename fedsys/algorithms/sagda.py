"""SAGDA (Yang, Liu, Zhang, Liu, NeurIPS 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedsys.algorithms.minimax import MinimaxAlgorithm, MinimaxState
from fedsys.communication import Sync
from fedsys.problems import Minimax


@dataclass(frozen=True)
class ControlledState(MinimaxState):
    """The players, where they were at the start of the round, and what is added to gradients."""

    x_r: Tensor
    y_r: Tensor
    correction_x: Tensor
    correction_y: Tensor


@dataclass(frozen=True)
class SAGDA(MinimaxAlgorithm[ControlledState]):
    """Local SGDA corrected by control variates of the round's start, with a step of the server.

        x_i <- x_i - lr_x (grad_x f_i(x_i, y_i; xi) - v_x,i + mean v_x),  y likewise, upwards
        x_{r+1} = x_r + server_lr mean(x_i - x_r),   v_i = grad f_i(x_r, y_r; xi_r)

    A round has two exchanges: the points, then the control variates at the new common point.

    Args:
        lr_x: the local step of the min player.
        lr_y: the local step of the max player.
        server_lr: the server's step for both.
        cv_sample: "round": v_i is taken once, with the sample of the round; "step": with the
            sample of each step, as in CDMA, and only its mean once.
        local_steps: K, the steps of a round.
    """

    server_lr: float = 1.0
    cv_sample: str = "round"

    needs_all_clients: ClassVar[str] = "the control variate of one that is away grows old"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("server_lr")
        self._require(self.cv_sample in ("round", "step"), "cv_sample", "round or step")

    def init(self, oracle: Minimax, sync: Sync) -> ControlledState:
        """The control variates of the first round."""
        return self._begin_round(oracle.x0, oracle.y0, oracle, sync)

    def step(self, s: ControlledState, oracle: Minimax, sync: Sync) -> ControlledState:
        """A corrected step; after the average, the control variates of the next round."""
        xi = oracle.draw()
        gx, gy = oracle.grads(s.x, s.y, xi)
        if self.cv_sample == "step":
            own_x, own_y = oracle.grads(s.x_r, s.y_r, xi)
            gx, gy = gx - own_x, gy - own_y
        x, y = self._move(s.x, s.y, gx + s.correction_x, gy + s.correction_y, oracle)
        if not sync:
            return replace(s, x=x, y=y)
        x, y = sync(x, y)
        x, y = s.x_r + self.server_lr * (x - s.x_r), s.y_r + self.server_lr * (y - s.y_r)
        return self._begin_round(x, y, oracle, sync)

    def _begin_round(self, x: Tensor, y: Tensor, oracle: Minimax, sync: Sync) -> ControlledState:
        vx, vy = oracle.grads(x, y, oracle.draw())
        mean_x, mean_y = sync(vx, vy)
        if self.cv_sample == "round":
            mean_x, mean_y = mean_x - vx, mean_y - vy
        return ControlledState(x, y, x, y, mean_x, mean_y)
