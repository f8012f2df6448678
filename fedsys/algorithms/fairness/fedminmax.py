"""FedMinMax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import Algorithm, State
from fedsys.core.oracles import Grouped
from fedsys.core.rounds import CommunicationSchedule, Every
from fedsys.core.schedules import Rate, at
from fedsys.core.sync import Sync
from fedsys.problems.terms import Simplex


@dataclass(frozen=True)
class GroupWeightState(State):
    """The model x, the adversary mu on the simplex of groups, and their shares rho."""

    x: Tensor
    mu: Tensor
    rho: Tensor


@dataclass(frozen=True)
class FedMinMax(Algorithm[Grouped, GroupWeightState]):
    """FedMinMax of Papadaki et al. (FAccT 2022).

    min over x, max over mu in the simplex of sum_a mu_a r_a(x); every step communicates.

        x <- mean_i (x - lr grad of the loss weighted by mu_a / rho_a),
        mu <- projection of mu + weight_lr r(x),    r_a the risk of group a where x was

    rho_a and r_a are of all clients together, as the communicator weights them: their global
    statistics are what the algorithm needs (communicator.weights=size for the paper's). The last x
    and the mean of all, which the paper returns, are evaluated. A baseline of Li, Huang and Huang
    (2022), arXiv:2205.01608.

    Args:
        lr: the step size of x, a number or a schedule.
        weight_lr: the step size of mu, a number or a schedule.
    """

    lr: Rate = 0.1
    weight_lr: Rate = 0.1

    kind: ClassVar[str] = "grouped"
    averages: ClassVar[bool] = True
    full_participation: ClassVar[str | None] = "the server weighs the risks of every group"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "weight_lr")

    @property
    @override
    def schedule(self) -> CommunicationSchedule:
        return Every(1)

    @override
    def init(self, oracle: Grouped, sync: Sync) -> GroupWeightState:
        rho = sync(oracle.group_shares)
        return GroupWeightState(oracle.x0, rho, rho)

    @override
    def step(self, s: GroupWeightState, oracle: Grouped, sync: Sync) -> GroupWeightState:
        gradient, parts = oracle.weighted_grad(s.x, s.mu / s.rho, oracle.draw())
        x, parts = sync(s.x - at(self.lr, oracle.step) * gradient, parts)
        weight_lr = at(self.weight_lr, oracle.step)
        mu = Simplex().prox(s.mu + weight_lr * parts / s.rho, 1.0)
        return GroupWeightState(x, mu, s.rho)

    @override
    def solution(self, s: GroupWeightState) -> Tensor:
        return s.x
