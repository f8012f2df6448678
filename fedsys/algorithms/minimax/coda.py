"""CoDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.averaged import running_mean
from fedsys.algorithms.minimax.base import MinimaxState
from fedsys.core.oracles import Minimax
from fedsys.core.periodic import StagedAlgorithm
from fedsys.core.schedules import Rate, at
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class StageState(MinimaxState):
    """The two players, the centre x_0 of the stage, and the mean of x over the stage so far."""

    x_0: Tensor
    mean: Tensor


@dataclass(frozen=True)
class CoDA(StagedAlgorithm[Minimax, StageState]):
    """CoDA of Guo et al. (ICML 2020).

    Local SGDA in stages, each with a proximal term around its centre; averaged every K steps:

        x_i <- (x_i - lr grad_x f_i(x_i, y_i; xi) + lr w x_0) / (1 + lr w),   w the prox_weight
        y_i <- y_i + lr grad_y f_i(x_i, y_i; xi)

    A baseline of Zhang et al. (NeurIPS 2023), arXiv:2304.10101. A stage ends where the step size is
    divided. The dual restart from fresh samples, which only AUC has, is left out, as in CoDA+ and
    in all public code. conf/algorithm/coda.yaml also continues from
    the last point, as public code does, where the paper takes the average.

    Args:
        lr: the step size of both players, a number or a schedule.
        prox_weight: w, the weight of the squared distance to x_0 (1/gamma in the paper), a number
            or a schedule.
        stage_output: the next centre and start, the "average" of the stage or its "last" point.
        local_steps: K, the number of steps of a round.
        decay_at: the fractions of the run at which a stage ends and lr is divided.
        decay_by: what it is divided by.
        total_steps: T, the length of the run; the runner sets it.
    """

    lr: Rate = 0.1
    prox_weight: Rate = 2e-3
    stage_output: str = "last"

    kind: ClassVar[str] = "minimax"
    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")
        self._require_not_negative("prox_weight", rule="not negative")
        known = self.stage_output in ("average", "last")
        self._require(known, "stage_output", "average or last")

    @override
    def init(self, oracle: Minimax, sync: Sync) -> StageState:
        return StageState(oracle.x0, oracle.y0, oracle.x0, torch.zeros_like(oracle.x0))

    @override
    def step(self, s: StageState, oracle: Minimax, sync: Sync) -> StageState:
        t = oracle.step
        lr = at(self.lr, t) * self._stages.at(t)
        gx, gy = oracle.grads(s.x, s.y, oracle.draw())
        pull = lr * at(self.prox_weight, t)
        x = s.x.sub(gx, alpha=lr).add_(s.x_0, alpha=pull).div_(1 + pull)
        x, y = oracle.prox_x(x, lr / (1 + pull)), oracle.prox_y(s.y.add(gy, alpha=lr), lr)
        mean = running_mean(s.mean, x, t - self._stages.start_of_stage(t))
        if self._stages.stage(t + 1) == self._stages.stage(t):
            x, y = sync(x, y)
            return StageState(x, y, s.x_0, mean)
        if self.stage_output == "average":
            x = mean
        x, y = sync(x, y)
        return StageState(x, y, x, torch.zeros_like(x))

    @override
    def solution(self, s: StageState) -> Tensor:
        return s.z
