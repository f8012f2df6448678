"""FedReg: FedAvg with a fairness metric as regulariser (baseline of fedbio.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsys.algorithms.algorithm import PeriodicAlgorithm
from fedsys.algorithms.fedavg import MinimisationState
from fedsys.communication import Sync
from fedsys.problems import Grouped


@dataclass(frozen=True)
class FedReg(PeriodicAlgorithm[Grouped, MinimisationState]):
    """x_i <- x_i - lr (grad f_i + weight grad R_i), averaged every K steps.

    R_i is the disparity of the groups in client i's own batch.

    Args:
        lr: the step size.
        weight: of the disparity.
        local_steps: K, the steps of a round.
    """

    lr: float = 0.1
    weight: float = 0.1

    kind: ClassVar[str] = "grouped"
    needs_all_clients: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")
        self._require(self.weight >= 0, "weight", "at least 0")

    def init(self, oracle: Grouped, sync: Sync) -> MinimisationState:
        """All clients start from the same point."""
        return MinimisationState(oracle.x0)

    def step(self, s: MinimisationState, oracle: Grouped, sync: Sync) -> MinimisationState:
        """One step; loss and disparity are of the same batch."""
        xi = oracle.draw()
        _, disparity_grad = oracle.disparity_and_grad(s.x, xi)
        x = s.x - self.lr * (oracle.grad(s.x, xi) + self.weight * disparity_grad)
        return MinimisationState(sync(x))

    def solution(self, s: MinimisationState) -> Tensor:
        """x."""
        return s.x
