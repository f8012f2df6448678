"""What an algorithm is: hyperparameters, and two pure methods that read like its pseudocode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import isfinite, nan
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch import Tensor

from fedsys.algorithms.rates import THEORY, Decreasing, Rate
from fedsys.communication import Every, Schedule, Sync
from fedsys.errors import InputError, require
from fedsys.problems import Constants, Theory


@dataclass(frozen=True)
class State:
    """Named tensors; axis 0 is the hosted client, axis 1 the flat variable.

    Averaged rows share their memory: a step makes new tensors and never writes to old ones.
    """

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


AnyState = TypeVar("AnyState", bound=State)
AnyOracle = TypeVar("AnyOracle", bound=Any)


@dataclass(frozen=True)
class Algorithm(ABC, Generic[AnyOracle, AnyState]):
    """A federated algorithm; its fields are its hyperparameters, checked where they are declared.

    Nothing here knows of ranks, files or configurations: the oracle is what the hosted clients can
    compute, and `sync` is the only way to communicate.
    """

    kind: ClassVar[str]
    """The kind of problem it solves, a key of `fedsys.problems.KINDS`."""
    needs_all_clients: ClassVar[str] = "its analysis has every client in every round"
    """Why it is not for `participation` below 1; "" where an unbiased average is all it needs."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in ("int", "float", "Rate") and not self._awaits_theory(field.name):
                number = isinstance(value, int | float | Decreasing)
                self._require(number, field.name, "a number")

    def _awaits_theory(self, name: str) -> bool:
        """Whether a hyperparameter that has a theory is left to it."""
        default = next(field.default for field in fields(self) if field.name == name)
        return bool(getattr(self, name) == THEORY == default)

    def _require(self, condition: bool, name: str, rule: str) -> None:
        """Refuse a hyperparameter: which, what it must be and what it is."""
        require(condition, type(self).__name__, name, getattr(self, name), rule)

    def _require_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            valid = self._awaits_theory(name) or isinstance(value, Decreasing) or value > 0
            self._require(valid, name, "positive")

    def _require_chance(self, *names: str) -> None:
        for name in names:
            valid = self._awaits_theory(name) or 0 < getattr(self, name) <= 1
            self._require(valid, name, "in (0, 1]")

    def awaiting_theory(self) -> list[str]:
        """The hyperparameters that are left to the theory."""
        return [field.name for field in fields(self) if self._awaits_theory(field.name)]

    def tuned(self, theory: Theory) -> Self:
        """The same algorithm with the theorem's numbers in place of every "theory"."""
        return self

    def planned(self, steps: int) -> Self:
        """The same algorithm, told how many steps the run has."""
        return self

    def bound(self, theory: Theory) -> float | None:
        """What the theorem promises for the gap of the averaged iterate, if it does."""
        return None

    def outputs(self, state: AnyState) -> dict[str, Tensor]:
        """The points that are evaluated, by the prefix of their metrics' names."""
        return {"": self.solution(state)}

    def fill(self, theory: Theory, **numbers: Callable[[Constants], Rate]) -> Self:
        """Replace those hyperparameters that are left to the theory."""
        values: dict[str, Any] = {}
        for name, number in numbers.items():
            if self._awaits_theory(name):
                try:
                    values[name] = number(theory.constants)
                except ZeroDivisionError:
                    values[name] = nan
                if not (isinstance(values[name], Decreasing) or isfinite(values[name])):
                    raise self._no_theory(name, theory.constants)
        try:
            return replace(self, **values)
        except InputError as error:
            raise self._no_theory(", ".join(values), theory.constants) from error

    def _no_theory(self, name: str, c: Constants) -> InputError:
        return InputError(
            f"{type(self).__name__}: {name}=theory has no value for this problem (mu={c.mu:.3g}, "
            f"L={c.L:.3g}, ell={c.ell_spectral:.3g}); give algorithm.{name} a number"
        )

    @property
    @abstractmethod
    def schedule(self) -> Schedule:
        """When it communicates."""

    @abstractmethod
    def init(self, oracle: AnyOracle, sync: Sync) -> AnyState:
        """The state before the first step; `sync` communicates here."""

    @abstractmethod
    def step(self, state: AnyState, oracle: AnyOracle, sync: Sync) -> AnyState:
        """One iteration of all hosted clients."""

    @abstractmethod
    def solution(self, state: AnyState) -> Tensor:
        """The point z = (x, y) [C, d] that the run is judged by."""


@dataclass(frozen=True)
class PeriodicAlgorithm(Algorithm[AnyOracle, AnyState]):
    """An algorithm that communicates in every `local_steps`-th step.

    Args:
        local_steps: K, the steps of a round.
    """

    local_steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.local_steps >= 1, "local_steps", "at least 1")

    @property
    def schedule(self) -> Schedule:
        """Every K-th step."""
        return Every(self.local_steps)
