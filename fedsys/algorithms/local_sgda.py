"""Local SGDA (Deng and Mahdavi, AISTATS 2021; baselines of adafgda.txt and proxskip-vip.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsys.algorithms.algorithm import PeriodicAlgorithm, State
from fedsys.communication import Sync
from fedsys.problems import Minimax


@dataclass(frozen=True)
class MinimaxState(State):
    """The two players."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class LocalSGDA(PeriodicAlgorithm[Minimax, MinimaxState]):
    """Simultaneous descent and ascent on each client, averaged every K steps.

        x_i <- x_i - lr_x grad_x f_i(x_i, y_i; xi),    y_i <- y_i + lr_y grad_y f_i(x_i, y_i; xi)

    Args:
        lr_x: the step of the min player.
        lr_y: the step of the max player.
        local_steps: K, the steps of a round.
    """

    lr_x: float = 0.1
    lr_y: float = 0.1

    kind: ClassVar[str] = "minimax"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.lr_x > 0, "lr_x", "positive")
        self._require(self.lr_y > 0, "lr_y", "positive")

    def init(self, oracle: Minimax, sync: Sync) -> MinimaxState:
        """All clients start from the same point."""
        return MinimaxState(oracle.x0, oracle.y0)

    def step(self, s: MinimaxState, oracle: Minimax, sync: Sync) -> MinimaxState:
        """One step of both players at the old point, with the same sample."""
        gx, gy = oracle.grads(s.x, s.y, oracle.draw())
        x, y = sync(s.x - self.lr_x * gx, s.y + self.lr_y * gy)
        return MinimaxState(x, y)

    def solution(self, s: MinimaxState) -> Tensor:
        """z = (x, y)."""
        return torch.cat([s.x, s.y], dim=1)
