"""The common part of periodic min-max algorithms: two players, their step sizes and steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import State
from fedsys.core.arithmetic import add_scaled
from fedsys.core.oracles import Minimax
from fedsys.core.periodic import PeriodicAlgorithm
from fedsys.core.schedules import Rate, at


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
    """An algorithm for min over x, max over y.

    Args:
        lr_x: the step size of the min player, a number or a schedule.
        lr_y: the step size of the max player, a number or a schedule.
        local_steps: K, the number of steps of a round.
    """

    lr_x: Rate = 1.0
    lr_y: Rate = 0.1

    kind: ClassVar[str] = "minimax"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr_x", "lr_y")

    @override
    def solution(self, s: AnyMinimaxState) -> Tensor:
        return s.z

    def _move(
        self, x: Tensor, y: Tensor, dx: Tensor, dy: Tensor, oracle: Minimax, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Move x along -dx and y along dy, by `scale` times the step sizes of this iteration."""
        lr_x = scale * at(self.lr_x, oracle.step)
        lr_y = scale * at(self.lr_y, oracle.step)
        x, y = add_scaled(x, dx, -lr_x), add_scaled(y, dy, lr_y)
        return oracle.prox_x(x, lr_x), oracle.prox_y(y, lr_y)
