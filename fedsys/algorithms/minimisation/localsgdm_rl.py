"""LocalSGDM on the ratio loss, with class weights that a monitor estimates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.minimisation.localsgdm import HeavyBallState
from fedsys.core.oracles import Monitored
from fedsys.core.periodic import StagedAlgorithm
from fedsys.core.schedules import Rate, at, highest
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class MonitoredState(HeavyBallState):
    """x, the momentum u, the class weights alpha of this round, and those of the next."""

    alpha: Tensor
    next_alpha: Tensor


@dataclass(frozen=True)
class LocalSGDMRL(StagedAlgorithm[Monitored, MonitoredState]):
    """The ratio loss of Wang, Xu, Wang and Zhu (AAAI 2021), trained by LocalSGDM.

    Addressing Class Imbalance in Federated Learning. A baseline of Zhang et al. (NeurIPS 2023),
    arXiv:2304.10101.

        u_i <- momentum u_i + grad f_i(x_i; alpha_r, xi),    x_i <- x_i - lr u_i
        in a round:  x, u <- their means,    alpha_{r+1} = 1 + beta R(x_r),    alpha_0 = 1

    R is the monitor's: the server trains x_r on auxiliary samples of each class alone, by K steps
    like those of a client, and compares how the last layer moves. As in the authors' code, weights
    that were estimated at the start of a round are used in the next one.

    Args:
        lr: the step size, a number or a schedule.
        momentum: the fraction of u that is kept, a number or a schedule.
        local_steps: K, the number of steps of a round.
        decay_at: the fractions of the run at which lr is divided.
        decay_by: what it is divided by.
        total_steps: T, the length of the run; the runner sets it.
    """

    lr: Rate = 0.1
    momentum: Rate = 0.1

    kind: ClassVar[str] = "monitored"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")
        self._require(0 <= highest(self.momentum) < 1, "momentum", "in [0, 1)")

    @override
    def init(self, oracle: Monitored, sync: Sync) -> MonitoredState:
        x = oracle.x0
        (next_alpha,) = sync.server(lambda mean: self._monitor(oracle, mean), x)
        return MonitoredState(x, torch.zeros_like(x), torch.ones_like(next_alpha), next_alpha)

    @override
    def step(self, s: MonitoredState, oracle: Monitored, sync: Sync) -> MonitoredState:
        lr = at(self.lr, oracle.step) * self._stages.at(oracle.step)
        u = at(self.momentum, oracle.step) * s.u + oracle.class_grad(s.x, s.alpha, oracle.draw())
        x = s.x.sub(u, alpha=lr)
        if not sync:
            return MonitoredState(x, u, s.alpha, s.next_alpha)
        x, u, after_next = sync.server(lambda x, u: (x, u, self._monitor(oracle, x)), x, u)
        return MonitoredState(x, u, s.next_alpha, after_next)

    @override
    def solution(self, s: MonitoredState) -> Tensor:
        return s.x

    def _monitor(self, oracle: Monitored, x: Tensor) -> Tensor:
        """alpha at x [d], with steps like those of the clients."""
        lr = at(self.lr, oracle.step) * self._stages.at(oracle.step)
        momentum = at(self.momentum, oracle.step)
        return oracle.class_weights(x, lr, momentum, self.local_steps)
