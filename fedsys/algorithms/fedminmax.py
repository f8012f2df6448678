"""FedMinMax (Papadaki et al., FAccT 2022; baseline of fedbio.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsys.algorithms.algorithm import Algorithm, State
from fedsys.algorithms.averaging import running_mean
from fedsys.communication import Every, Schedule, Sync
from fedsys.problems import Grouped
from fedsys.problems.terms import Simplex


@dataclass(frozen=True)
class GroupWeightState(State):
    """The model x, the adversary mu on the simplex of groups, their shares rho, the mean of x."""

    x: Tensor
    mu: Tensor
    rho: Tensor
    x_o: Tensor


@dataclass(frozen=True)
class FedMinMax(Algorithm[Grouped, GroupWeightState]):
    """min over x, max over mu in the simplex of sum_a mu_a r_a(x); every step communicates.

        x <- mean_i (x - lr grad of the loss weighted by mu_a / rho_a),
        mu <- projection of mu + weight_lr r(x),    r_a the risk of group a where x was

    rho_a and r_a are of all clients together, as the communicator weights them: their global
    statistics are what the method needs (communicator.weights=size for the paper's). Both the last
    x and the mean of all are evaluated.

    Args:
        lr: the step of x.
        weight_lr: the step of mu.
    """

    lr: float = 0.1
    weight_lr: float = 0.1

    kind: ClassVar[str] = "grouped"
    needs_all_clients: ClassVar[str] = "the server weighs the risks of every group"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "weight_lr")

    @property
    def schedule(self) -> Schedule:
        """Every step."""
        return Every(1)

    def init(self, oracle: Grouped, sync: Sync) -> GroupWeightState:
        """mu = rho: no group is weighted up."""
        rho = sync(oracle.group_shares)
        return GroupWeightState(oracle.x0, rho, rho, oracle.x0)

    def step(self, s: GroupWeightState, oracle: Grouped, sync: Sync) -> GroupWeightState:
        """A descent step of x on each client, an ascent step of mu on the risks they report."""
        gradient, parts = oracle.weighted_grad(s.x, s.mu / s.rho, oracle.draw())
        x, parts = sync(s.x - self.lr * gradient, parts)
        mu = Simplex().prox(s.mu + self.weight_lr * parts / s.rho, 1.0)
        return GroupWeightState(x, mu, s.rho, running_mean(s.x_o, x, oracle.step))

    def solution(self, s: GroupWeightState) -> Tensor:
        """The last x."""
        return s.x

    def outputs(self, s: GroupWeightState) -> dict[str, Tensor]:
        """The last x, and the average that the paper returns."""
        return {"": s.x, "average": s.x_o}
