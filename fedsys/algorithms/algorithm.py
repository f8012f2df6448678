"""What an algorithm is: hyperparameters, and two pure methods that read like its pseudocode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from fedsys.communication import Every, Schedule, Sync
from fedsys.errors import require


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

    def __post_init__(self) -> None:
        for field in fields(self):
            number = isinstance(getattr(self, field.name), (int, float))
            self._require(number or field.type not in ("int", "float"), field.name, "a number")

    def _require(self, condition: bool, name: str, rule: str) -> None:
        """Refuse a hyperparameter: which, what it must be and what it is."""
        require(condition, type(self).__name__, name, getattr(self, name), rule)

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
