"""FedAvg, also known as local SGD (McMahan et al., AISTATS 2017; Stich, ICLR 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsys.algorithms.algorithm import PeriodicAlgorithm, State
from fedsys.communication import Sync
from fedsys.problems import Minimisation


@dataclass(frozen=True)
class MinimisationState(State):
    """The one player."""

    x: Tensor


@dataclass(frozen=True)
class FedAvg(PeriodicAlgorithm[Minimisation, MinimisationState]):
    """Gradient steps on each client, averaged every K steps.

        x_i <- x_i - lr grad f_i(x_i; xi)

    Args:
        lr: the step size.
        local_steps: K, the steps of a round.
    """

    lr: float = 0.1

    kind: ClassVar[str] = "minimisation"
    needs_all_clients: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.lr > 0, "lr", "positive")

    def init(self, oracle: Minimisation, sync: Sync) -> MinimisationState:
        """All clients start from the same point."""
        return MinimisationState(oracle.x0)

    def step(self, s: MinimisationState, oracle: Minimisation, sync: Sync) -> MinimisationState:
        """One gradient step."""
        g = oracle.grad(s.x, oracle.draw())
        # In one pass over memory, and in place of the gradient, which nobody else has.
        x = torch.sub(s.x, g, alpha=self.lr, out=g)
        return MinimisationState(sync(x))

    def solution(self, s: MinimisationState) -> Tensor:
        """x."""
        return s.x
