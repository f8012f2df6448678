"""CODASCA: SCAFFOLD inside each stage of CoDA."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.averaged import running_mean
from fedsys.algorithms.minimax.base import MinimaxAlgorithm, MinimaxState
from fedsys.core.oracles import Minimax
from fedsys.core.schedules import Rate, Staged, at
from fedsys.core.sync import Sync


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
    """CODASCA of Yuan, Guo, Xu, Ying and Yang (ICML 2021).

    Local SGDA on f + ||x - centre||^2 / (2 gamma), with control variates on both players:

        x_i <- x_i - lr_x (grad_x f_i(x_i, y_i; xi) - c_i + mean c + (x_i - centre) / gamma)
        y_i <- y_i + lr_y (grad_y f_i(x_i, y_i; xi) - c'_i + mean c')

    c_i and c'_i are the means of the raw gradients of the round before. After every `stage` steps
    the step sizes are divided by `decay`, and the centre becomes the average x of the stage.

    Args:
        lr_x: the step size of the min player in the first stage, a number or a schedule.
        lr_y: the step size of the max player; the paper has one for both.
        gamma: the inverse of the weight of the centre, a number or a schedule.
        stage: T_0, the steps of a stage, which ends with the round that they end in.
        decay: what the steps are divided by after a stage.
        local_steps: K, the number of steps of a round.
    """

    lr_x: Rate = 0.1
    gamma: Rate = 500.0
    stage: int = 4000
    decay: float = 3.0

    full_participation: ClassVar[str | None] = "control variates of absent clients go stale"
    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("gamma", "decay")
        self._require_divisor("gamma")
        self._require(self.stage >= 1, "stage", "at least 1")

    @override
    def init(self, oracle: Minimax, sync: Sync) -> CodascaState:
        x, y = oracle.x0, oracle.y0
        zero_x, zero_y = torch.zeros_like(x), torch.zeros_like(y)
        return CodascaState(x, y, x, zero_x, zero_x, zero_y, zero_x, zero_y)

    @override
    def step(self, s: CodascaState, oracle: Minimax, sync: Sync) -> CodascaState:
        stages, step = self._stages, oracle.step
        gx, gy = oracle.grads(s.x, s.y, oracle.draw())
        dx = gx + s.correction_x + (s.x - s.centre) / at(self.gamma, step)
        x, y = self._move(s.x, s.y, dx, gy + s.correction_y, oracle, stages.at(step))
        k = step % self.local_steps
        c_x, c_y = running_mean(s.c_x, gx, k), running_mean(s.c_y, gy, k)
        s = replace(s, x=x, y=y, c_x=c_x, c_y=c_y)
        s = replace(s, average=running_mean(s.average, x, step - stages.start_of_stage(step)))
        return self._agree(s, stages.start_of_stage(step + 1) == step + 1, sync) if sync else s

    @cached_property
    def _stages(self) -> Staged:
        """The factor on the step sizes; a stage ends with the round that its T_0 steps end in."""
        rounds = -(-self.stage // self.local_steps)
        return Staged(1.0, every=rounds * self.local_steps, divide_by=self.decay)

    def _agree(self, s: CodascaState, stage_ends: bool, sync: Sync) -> CodascaState:
        if stage_ends:
            x, y, mean_x, mean_y, centre = sync(s.x, s.y, s.c_x, s.c_y, s.average)
        else:
            x, y, mean_x, mean_y = sync(s.x, s.y, s.c_x, s.c_y)
            centre = s.centre
        corrections = mean_x - s.c_x, mean_y - s.c_y
        return CodascaState(x, y, centre, s.average, s.c_x, s.c_y, *corrections)
