"""LocalSGDM, local SGD with momentum (Yu, Jin, Yang, ICML 2019; baseline of localscgdam.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsys.algorithms.algorithm import State
from fedsys.algorithms.stages import StagedAlgorithm
from fedsys.communication import Sync
from fedsys.problems import Minimisation

POLICIES = ("average", "keep", "reset")


@dataclass(frozen=True)
class HeavyBallState(State):
    """The point x and the momentum u."""

    x: Tensor
    u: Tensor


@dataclass(frozen=True)
class LocalSGDM(StagedAlgorithm[Minimisation, HeavyBallState]):
    """Heavy-ball steps on each client; x and u averaged every K steps.

        u_i <- momentum u_i + grad f_i(x_i; xi),    x_i <- x_i - lr u_i

    Args:
        lr: the step size.
        momentum: the part of u that is kept.
        momentum_sync: what a round does to u: "average", "keep" each client's own, or "reset" to 0.
        local_steps: K, the steps of a round.
        decay_at: shares of the run where lr falls.
        decay_by: what it is divided by there.
        total_steps: T, the length of the run; the runner tells it.
    """

    lr: float = 0.1
    momentum: float = 0.1
    momentum_sync: str = "average"

    kind: ClassVar[str] = "minimisation"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")
        self._require(0 <= self.momentum < 1, "momentum", "in [0, 1)")
        known = self.momentum_sync in POLICIES
        self._require(known, "momentum_sync", " or ".join(POLICIES))

    def init(self, oracle: Minimisation, sync: Sync) -> HeavyBallState:
        """u_0 = 0."""
        return HeavyBallState(oracle.x0, torch.zeros_like(oracle.x0))

    def step(self, s: HeavyBallState, oracle: Minimisation, sync: Sync) -> HeavyBallState:
        """One step; what a round does to u is the policy's."""
        lr = self.lr * self._decay(oracle.step)
        u = self.momentum * s.u + oracle.grad(s.x, oracle.draw())
        x = s.x.sub(u, alpha=lr)  # in one pass over memory
        if self.momentum_sync == "average":
            x, u = sync(x, u)
        else:
            x = sync(x)
            if sync and self.momentum_sync == "reset":
                u = torch.zeros_like(u)
        return HeavyBallState(x, u)

    def solution(self, s: HeavyBallState) -> Tensor:
        """x."""
        return s.x
