"""CODASCA (Yuan, Guo, Xu, Ying, Yang, ICML 2021): SCAFFOLD inside each stage of CoDA."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedsys.algorithms.averaging import running_mean
from fedsys.algorithms.minimax import MinimaxAlgorithm, MinimaxState
from fedsys.communication import Sync
from fedsys.problems import Minimax


@dataclass(frozen=True)
class CodascaState(MinimaxState):
    """The players; the stage's centre and average x; the round's mean gradients, corrections."""

    centre: Tensor
    average: Tensor
    c_x: Tensor
    c_y: Tensor
    correction_x: Tensor
    correction_y: Tensor


@dataclass(frozen=True)
class CODASCA(MinimaxAlgorithm[CodascaState]):
    """Local SGDA on f + ||x - centre||^2 / (2 gamma), with control variates on both players.

        x_i <- x_i - lr_x (grad_x f_i(x_i, y_i; xi) - c_i + mean c + (x_i - centre) / gamma)
        y_i <- y_i + lr_y (grad_y f_i(x_i, y_i; xi) - c'_i + mean c')

    c_i and c'_i are the means of the raw gradients of the round before. After every `stage` steps
    the step sizes are divided by `decay`, and the centre becomes the average x of the stage.

    Args:
        lr_x: the step of the min player in the first stage.
        lr_y: the step of the max player; the paper has one step for both.
        gamma: inverse weight of the centre.
        stage: T_0, the steps of a stage, a multiple of K.
        decay: what the steps are divided by after a stage.
        local_steps: K, the steps of a round.
    """

    gamma: float = 500.0
    stage: int = 4000
    decay: float = 3.0

    needs_all_clients: ClassVar[str] = "the control variate of one that is away grows old"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("gamma", "decay")
        whole = self.stage >= 1 and self.stage % self.local_steps == 0
        self._require(whole, "stage", f"a multiple of local_steps={self.local_steps}")

    def init(self, oracle: Minimax, sync: Sync) -> CodascaState:
        """All control variates are zero."""
        x, y = oracle.x0, oracle.y0
        zero_x, zero_y = torch.zeros_like(x), torch.zeros_like(y)
        return CodascaState(x, y, x, zero_x, zero_x, zero_y, zero_x, zero_y)

    def step(self, s: CodascaState, oracle: Minimax, sync: Sync) -> CodascaState:
        """A corrected step; at the end of a round the control variates of the next one."""
        stages, t = divmod(oracle.step, self.stage)
        gx, gy = oracle.grads(s.x, s.y, oracle.draw())
        dx = gx + s.correction_x + (s.x - s.centre) / self.gamma
        x, y = self._move(s.x, s.y, dx, gy + s.correction_y, oracle, self.decay**-stages)
        k = oracle.step % self.local_steps
        c_x, c_y = running_mean(s.c_x, gx, k), running_mean(s.c_y, gy, k)
        s = replace(s, x=x, y=y, average=running_mean(s.average, x, t), c_x=c_x, c_y=c_y)
        return self._agree(s, t + 1 == self.stage, sync) if sync else s

    def _agree(self, s: CodascaState, stage_ends: bool, sync: Sync) -> CodascaState:
        if stage_ends:
            x, y, mean_x, mean_y, centre = sync(s.x, s.y, s.c_x, s.c_y, s.average)
        else:
            x, y, mean_x, mean_y = sync(s.x, s.y, s.c_x, s.c_y)
            centre = s.centre
        corrections = mean_x - s.c_x, mean_y - s.c_y
        return CodascaState(x, y, centre, s.average, s.c_x, s.c_y, *corrections)
