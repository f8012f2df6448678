"""What the periodic min-max methods share: two players, their steps and how they move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from fedsys.algorithms.algorithm import PeriodicAlgorithm, State
from fedsys.algorithms.rates import Rate, rate_at
from fedsys.problems import Minimax


@dataclass(frozen=True)
class MinimaxState(State):
    """The two players."""

    x: Tensor
    y: Tensor

    @property
    def z(self) -> Tensor:
        """(x, y)."""
        return torch.cat([self.x, self.y], dim=1)


AnyMinimaxState = TypeVar("AnyMinimaxState", bound=MinimaxState)


@dataclass(frozen=True)
class MinimaxAlgorithm(PeriodicAlgorithm[Minimax, AnyMinimaxState]):
    """A method for min over x, max over y.

    Args:
        lr_x: the step of the min player.
        lr_y: the step of the max player.
        local_steps: K, the steps of a round.
    """

    lr_x: Rate = 0.1
    lr_y: Rate = 0.1

    kind: ClassVar[str] = "minimax"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr_x", "lr_y")

    def solution(self, s: AnyMinimaxState) -> Tensor:
        """z = (x, y)."""
        return s.z

    def _move(
        self, x: Tensor, y: Tensor, dx: Tensor, dy: Tensor, oracle: Minimax, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """x down along dx and y up along dy, by `scale` times the steps of this iteration."""
        lr_x = scale * rate_at(self.lr_x, oracle.step)
        lr_y = scale * rate_at(self.lr_y, oracle.step)
        x, y = x.sub(dx, alpha=lr_x), y.add(dy, alpha=lr_y)  # in one pass over memory
        return oracle.prox_x(x, lr_x), oracle.prox_y(y, lr_y)
