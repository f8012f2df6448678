"""The common part of periodic algorithms for operators: a step size, possibly from a theorem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.averaged import ExtrapolatingAlgorithm
from fedsys.core.algorithm import AnyState, State
from fedsys.core.oracles import Variational
from fedsys.core.periodic import PeriodicAlgorithm
from fedsys.core.schedules import THEORY, FromTheory, Rate
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class VariationalAlgorithm(PeriodicAlgorithm[Variational, AnyState]):
    """An algorithm for z with F(z) = 0.

    Args:
        lr: the step size, a number, a schedule or "theory".
        local_steps: K, the number of steps of a round.
    """

    lr: Rate | FromTheory = THEORY
    local_steps: int = 20

    kind: ClassVar[str] = "variational"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")


@dataclass(frozen=True)
class PointState(State):
    """The point z."""

    z: Tensor


@dataclass(frozen=True)
class PointAlgorithm(VariationalAlgorithm[PointState]):
    """An algorithm whose state is a point; the mean of its iterates is evaluated too."""

    averages: ClassVar[bool] = True

    @override
    def init(self, oracle: Variational, sync: Sync) -> PointState:
        return PointState(oracle.z0)

    @override
    def solution(self, s: PointState) -> Tensor:
        return s.z


@dataclass(frozen=True)
class ExtrapolatingPointAlgorithm(PointAlgorithm, ExtrapolatingAlgorithm[Variational, PointState]):
    """An algorithm whose state is a point, and which averages its extrapolated points."""

    @override
    def step(self, s: PointState, oracle: Variational, sync: Sync) -> PointState:
        return self.step_and_point(s, oracle, sync)[0]
