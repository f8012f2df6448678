"""LocalSGDM: local SGD with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import State
from fedsys.core.oracles import Minimisation
from fedsys.core.periodic import StagedAlgorithm
from fedsys.core.schedules import Rate, at, highest
from fedsys.core.sync import Sync

POLICIES = ("average", "keep", "reset")


@dataclass(frozen=True)
class HeavyBallState(State):
    """The point x and the momentum u."""

    x: Tensor
    u: Tensor


@dataclass(frozen=True)
class LocalSGDM(StagedAlgorithm[Minimisation, HeavyBallState]):
    """PR-SGD with momentum of Yu, Jin and Yang (ICML 2019).

        u_i <- momentum u_i + grad f_i(x_i; xi),    x_i <- x_i - lr u_i

    x and u are averaged every K steps. A baseline of Zhang et al. (NeurIPS 2023), arXiv:2304.10101.

    Args:
        lr: the step size, a number or a schedule.
        momentum: the fraction of u that is kept, a number or a schedule.
        momentum_sync: what a round does to u: "average", "keep" each client's own, or "reset" to 0.
        local_steps: K, the number of steps of a round.
        decay_at: the fractions of the run at which lr is divided.
        decay_by: what it is divided by.
        total_steps: T, the length of the run; the runner sets it.
    """

    lr: Rate = 0.1
    momentum: Rate = 0.1
    momentum_sync: str = "average"

    kind: ClassVar[str] = "minimisation"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")
        self._require(0 <= highest(self.momentum) < 1, "momentum", "in [0, 1)")
        known = self.momentum_sync in POLICIES
        self._require(known, "momentum_sync", " or ".join(POLICIES))

    @override
    def init(self, oracle: Minimisation, sync: Sync) -> HeavyBallState:
        return HeavyBallState(oracle.x0, torch.zeros_like(oracle.x0))

    @override
    def step(self, s: HeavyBallState, oracle: Minimisation, sync: Sync) -> HeavyBallState:
        lr = at(self.lr, oracle.step) * self._stages.at(oracle.step)
        u = at(self.momentum, oracle.step) * s.u + oracle.grad(s.x, oracle.draw())
        x = s.x.sub(u, alpha=lr)  # in one pass over memory
        if self.momentum_sync == "average":
            x, u = sync(x, u)
        else:
            x = sync(x)
            if sync and self.momentum_sync == "reset":
                u = torch.zeros_like(u)
        return HeavyBallState(x, u)

    @override
    def solution(self, s: HeavyBallState) -> Tensor:
        return s.x
