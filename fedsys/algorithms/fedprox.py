"""FedProx (Li et al., MLSys 2020; baseline of localscgdam.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsys.algorithms.algorithm import State
from fedsys.algorithms.stages import StagedAlgorithm
from fedsys.communication import Sync
from fedsys.problems import Minimisation


@dataclass(frozen=True)
class AnchoredState(State):
    """The point x, and x_r, where the round began."""

    x: Tensor
    x_r: Tensor


@dataclass(frozen=True)
class FedProx(StagedAlgorithm[Minimisation, AnchoredState]):
    """Gradient steps that are drawn back to where the round began, averaged every K steps.

        x_i <- x_i - lr (grad f_i(x_i; xi) + mu (x_i - x_r))

    Args:
        lr: the step size.
        mu: the weight of the squared distance to x_r.
        local_steps: K, the steps of a round.
        decay_at: shares of the run where lr falls.
        decay_by: what it is divided by there.
        total_steps: T, the length of the run; the runner tells it.
    """

    lr: float = 0.1
    mu: float = 0.01

    kind: ClassVar[str] = "minimisation"
    needs_all_clients: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")
        self._require(self.mu >= 0, "mu", "not negative")

    def init(self, oracle: Minimisation, sync: Sync) -> AnchoredState:
        """The first round begins at the common start."""
        return AnchoredState(oracle.x0, oracle.x0)

    def step(self, s: AnchoredState, oracle: Minimisation, sync: Sync) -> AnchoredState:
        """One step; a new round begins at the average."""
        lr = self.lr * self._decay(oracle.step)
        g = oracle.grad(s.x, oracle.draw())
        x = sync(s.x - lr * (g + self.mu * (s.x - s.x_r)))
        return AnchoredState(x, x if sync else s.x_r)

    def solution(self, s: AnchoredState) -> Tensor:
        """x."""
        return s.x
