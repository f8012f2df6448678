"""FedAvg, also known as local SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import State
from fedsys.core.arithmetic import add_scaled
from fedsys.core.oracles import Minimisation
from fedsys.core.periodic import PeriodicAlgorithm
from fedsys.core.schedules import Rate, at
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class MinimisationState(State):
    """The one player."""

    x: Tensor


@dataclass(frozen=True)
class FedAvg(PeriodicAlgorithm[Minimisation, MinimisationState]):
    """FedAvg of McMahan et al. (AISTATS 2017), Algorithm 1; local SGD of Stich (ICLR 2019).

        x_i <- x_i - lr grad f_i(x_i; xi),  averaged every K steps

    Args:
        lr: the step size, a number or a schedule.
        local_steps: K, the number of steps of a round.
    """

    lr: Rate = 0.1

    kind: ClassVar[str] = "minimisation"
    full_participation: ClassVar[str | None] = None
    stackable: ClassVar[tuple[str, ...] | None] = ("lr",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")

    @override
    def init(self, oracle: Minimisation, sync: Sync) -> MinimisationState:
        return MinimisationState(oracle.x0)

    @override
    def step(self, s: MinimisationState, oracle: Minimisation, sync: Sync) -> MinimisationState:
        g = oracle.grad(s.x, oracle.draw())
        # In one pass over memory, and in place of the gradient, which is used nowhere else.
        x = add_scaled(s.x, g, -at(self.lr, oracle.step), out=g)
        return MinimisationState(sync(x))

    @override
    def solution(self, s: MinimisationState) -> Tensor:
        return s.x
