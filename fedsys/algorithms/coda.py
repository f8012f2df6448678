"""CoDA (Guo et al., ICML 2020; baseline of localscgdam.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsys.algorithms.averaging import running_mean
from fedsys.algorithms.minimax import MinimaxState
from fedsys.algorithms.stages import StagedAlgorithm
from fedsys.communication import Sync
from fedsys.problems import Minimax


@dataclass(frozen=True)
class StageState(MinimaxState):
    """The two players, the centre x_0 of the stage, and the mean of x over the stage so far."""

    x_0: Tensor
    mean: Tensor


@dataclass(frozen=True)
class CoDA(StagedAlgorithm[Minimax, StageState]):
    """Local SGDA in stages, each with a proximal term around its centre; averaged every K steps.

        x_i <- (x_i - lr grad_x f_i(x_i, y_i; xi) + lr w x_0) / (1 + lr w),   w the prox_weight
        y_i <- y_i + lr grad_y f_i(x_i, y_i; xi)

    A stage ends where the step size falls. The dual restart from fresh samples, which only AUC has,
    is left out, as in CoDA+ and in all public code.

    Args:
        lr: the step size of both players.
        prox_weight: w, the weight of the squared distance to x_0 (1/gamma in the paper).
        stage_output: the next centre and start, the "average" of the stage or its "last" point.
        local_steps: K, the steps of a round.
        decay_at: shares of the run where a stage ends and lr falls.
        decay_by: what it is divided by there.
        total_steps: T, the length of the run; the runner tells it.
    """

    lr: float = 0.1
    prox_weight: float = 2e-3
    stage_output: str = "average"

    kind: ClassVar[str] = "minimax"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")
        self._require(self.prox_weight >= 0, "prox_weight", "not negative")
        known = self.stage_output in ("average", "last")
        self._require(known, "stage_output", "average or last")

    def init(self, oracle: Minimax, sync: Sync) -> StageState:
        """The first centre is the common start."""
        return StageState(oracle.x0, oracle.y0, oracle.x0, torch.zeros_like(oracle.x0))

    def step(self, s: StageState, oracle: Minimax, sync: Sync) -> StageState:
        """One step; the last of a stage begins the next one."""
        t = oracle.step
        lr = self.lr * self._decay(t)
        gx, gy = oracle.grads(s.x, s.y, oracle.draw())
        pull = lr * self.prox_weight
        x = s.x.sub(gx, alpha=lr).add_(s.x_0, alpha=pull).div_(1 + pull)
        x, y = oracle.prox_x(x, lr / (1 + pull)), oracle.prox_y(s.y.add(gy, alpha=lr), lr)
        mean = running_mean(s.mean, x, t - self._first_step(t))
        if self._stage(t + 1) == self._stage(t):
            x, y = sync(x, y)
            return StageState(x, y, s.x_0, mean)
        if self.stage_output == "average":
            x = mean
        x, y = sync(x, y)
        return StageState(x, y, x, torch.zeros_like(x))

    def solution(self, s: StageState) -> Tensor:
        """z = (x, y)."""
        return s.z
