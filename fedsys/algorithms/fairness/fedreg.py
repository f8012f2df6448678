"""FedReg: FedAvg with a fairness metric as regulariser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.minimisation.fedavg import MinimisationState
from fedsys.core.oracles import Grouped
from fedsys.core.periodic import PeriodicAlgorithm
from fedsys.core.schedules import Rate, at
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class FedReg(PeriodicAlgorithm[Grouped, MinimisationState]):
    """FedReg, a baseline of Li, Huang and Huang (2022), arXiv:2205.01608, Section 6.

        x_i <- x_i - lr (grad f_i + weight grad R_i),  averaged every K steps

    R_i is the disparity of the groups in client i's own batch.

    Args:
        lr: the step size, a number or a schedule.
        weight: the weight of the disparity, a number or a schedule.
        local_steps: K, the number of steps of a round.
    """

    lr: Rate = 0.1
    weight: Rate = 0.1
    local_steps: int = 5

    kind: ClassVar[str] = "grouped"
    full_participation: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")
        self._require_not_negative("weight")

    @override
    def init(self, oracle: Grouped, sync: Sync) -> MinimisationState:
        return MinimisationState(oracle.x0)

    @override
    def step(self, s: MinimisationState, oracle: Grouped, sync: Sync) -> MinimisationState:
        xi = oracle.draw()
        _, disparity_grad = oracle.disparity_and_grad(s.x, xi)
        lr, weight = at(self.lr, oracle.step), at(self.weight, oracle.step)
        x = s.x - lr * (oracle.grad(s.x, xi) + weight * disparity_grad)
        return MinimisationState(sync(x))

    @override
    def solution(self, s: MinimisationState) -> Tensor:
        return s.x
