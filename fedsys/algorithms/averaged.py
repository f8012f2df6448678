"""Averaged iterates: a wrapper that adds the running mean of an algorithm's points to its state."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, make_dataclass, replace
from functools import cache
from typing import Any, Self

from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import (
    Algorithm,
    AnyOracle,
    AnyState,
    Guarantee,
    Measuring,
    State,
    guarantee_of,
)
from fedsys.core.constants import Theory
from fedsys.core.rounds import CommunicationSchedule
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class ExtrapolatingAlgorithm(Algorithm[AnyOracle, AnyState]):
    """An algorithm that averages a point other than its iterate.

    Extra-gradient methods average the points x_t at which the operator is evaluated. These are not
    part of the state, so `step_and_point` returns them beside it.
    """

    @abstractmethod
    def step_and_point(
        self, state: AnyState, oracle: AnyOracle, sync: Sync
    ) -> tuple[AnyState, Tensor]:
        """Return the state after one iteration, and the point of it that is averaged."""

    @override
    def step(self, state: AnyState, oracle: AnyOracle, sync: Sync) -> AnyState:
        return self.step_and_point(state, oracle, sync)[0]


@dataclass(frozen=True)
class Averaged(Algorithm[Any, State]):
    """Another algorithm, and the mean of its points, which is evaluated as `average_...`.

        x_o = (x_1 + ... + x_t) / t

    x_t is the solution after iteration t, or the point that an `ExtrapolatingAlgorithm` names.
    The iterates are those of the algorithm itself. Its state has one more field, `x_o`.

    An algorithm that declares `averages = True` is wrapped by the runner; any other one is averaged
    by `Averaged(algorithm)`. For the theorems on averages see Wang and Kale (2026),
    arXiv:2602.09164.

    Args:
        algorithm: the algorithm.
    """

    algorithm: Algorithm[Any, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.algorithm
        copied = ("kind", "full_participation", "term_maps", "needs_server", "needs_samples")
        for name in (*copied, "measures"):
            object.__setattr__(self, name, getattr(inner, name))

    @override
    def init(self, oracle: Any, sync: Sync) -> State:
        state = self.algorithm.init(oracle, sync)
        return _with_mean(type(state), state, self.algorithm.solution(state))

    @override
    def step(self, state: State, oracle: Any, sync: Sync) -> State:
        if isinstance(self.algorithm, ExtrapolatingAlgorithm):
            new, x = self.algorithm.step_and_point(state, oracle, sync)
        else:
            new = self.algorithm.step(state, oracle, sync)
            x = self.algorithm.solution(new)
        own_class = type(state).__bases__[0]
        return _with_mean(own_class, new, running_mean(_mean_of(state), x, oracle.step))

    @override
    def solution(self, state: State) -> Tensor:
        return self.algorithm.solution(state)

    @override
    def outputs(self, state: State) -> dict[str, Tensor]:
        return {**self.algorithm.outputs(state), "average": _mean_of(state)}

    @property
    @override
    def schedule(self) -> CommunicationSchedule:
        return self.algorithm.schedule

    @property
    @override
    def needs_full_operator(self) -> bool:
        return self.algorithm.needs_full_operator

    @override
    def private_size(self, oracle: Any, steps: int) -> int:
        return self.algorithm.private_size(oracle, steps)

    @override
    def awaiting_theory(self) -> list[str]:
        return self.algorithm.awaiting_theory()

    @override
    def tuned(self, theory: Theory) -> Self:
        return replace(self, algorithm=self.algorithm.tuned(theory))

    def measured(self, oracle: Any, sync: Sync) -> Self:
        """Return the same with the numbers that the algorithm measures."""
        inner = self.algorithm
        if not isinstance(inner, Measuring):
            return self
        return replace(self, algorithm=inner.measured(oracle, sync))

    @override
    def planned(self, steps: int) -> Self:
        return replace(self, algorithm=self.algorithm.planned(steps))

    @override
    def bound(self, theory: Theory) -> float | None:
        return self.algorithm.bound(theory)

    def guarantee(self, theory: Theory) -> Guarantee | None:
        """Return what the theorem of the algorithm bounds in every iteration."""
        return guarantee_of(self.algorithm, theory)


def averaged(algorithm: Algorithm[Any, Any]) -> Algorithm[Any, Any]:
    """Return the algorithm, wrapped in `Averaged` if it declares `averages = True`."""
    return Averaged(algorithm) if algorithm.averages else algorithm


def running_mean(mean: Tensor, x: Tensor, step: int) -> Tensor:
    """Return the mean of x_1, ..., x_{t+1}, from the mean of the first t = `step` of them."""
    return mean + (x - mean) / (step + 1)


@cache
def _state_class(inner: type[State]) -> type[State]:
    """The state class of an averaged algorithm: a subclass of its own, with the field `x_o`."""
    return make_dataclass(
        f"Averaged{inner.__name__}",
        [("x_o", Tensor)],
        bases=(inner,),
        frozen=True,
        namespace={"__reduce__": _reduced},  # pickle finds no class that was made at run time
    )


def _with_mean(inner: type[State], state: State, mean: Tensor) -> State:
    own = {field.name: getattr(state, field.name) for field in fields(inner)}
    return _state_class(inner)(**own, x_o=mean)  # type: ignore[arg-type, call-arg]


def _reduced(state: State) -> tuple[Any, ...]:
    inner = type(state).__bases__[0]
    own = inner(**{field.name: getattr(state, field.name) for field in fields(inner)})
    return _with_mean, (inner, own, _mean_of(state))


def _mean_of(state: State) -> Tensor:
    mean: Tensor = state.x_o  # type: ignore[attr-defined]
    return mean
