"""The contract of an algorithm: hyperparameters and two pure methods, as in its pseudocode."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite, nan
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, get_args, runtime_checkable

from torch import Tensor
from typing_extensions import override

from fedsys.core.constants import Constants, Theory
from fedsys.core.errors import InputError, require
from fedsys.core.fields import Checked, type_hints
from fedsys.core.rounds import CommunicationSchedule
from fedsys.core.schedules import THEORY, FromTheory, Rate, Schedule, highest
from fedsys.core.sync import Sync


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


class Guarantee(Protocol):
    """A quantity that a theorem bounds at every state of a run, such as a Lyapunov function."""

    def metrics(self, state: Any, steps: int, oracle: Any, sync: Sync) -> dict[str, float]:
        """Return the quantity and its bound after so many steps, as `NAME` and `NAME_bound`.

        The result is empty if the oracle does not know what it takes. All ranks call it together.
        """


@runtime_checkable
class Guaranteed(Protocol):
    """An algorithm with a theorem that bounds a quantity in every iteration."""

    def guarantee(self, theory: Theory) -> Guarantee | None:
        """Return that quantity; None if the theorem does not cover the run."""


def guarantee_of(algorithm: object, theory: Theory | None) -> Guarantee | None:
    """Return what a theorem bounds in every iteration of a run, if the constants are known."""
    if theory is None or not isinstance(algorithm, Guaranteed):
        return None
    return algorithm.guarantee(theory)


@dataclass(frozen=True)
class Algorithm(Checked, ABC, Generic[AnyOracle, AnyState]):
    """A federated algorithm; its fields are its hyperparameters, checked where they are declared.

    Nothing here knows of ranks, files or configurations: the oracle is what the hosted clients can
    compute, and `sync` is the only way to communicate.
    """

    kind: ClassVar[str]
    """The kind of problem it solves, a key of `fedsys.core.kinds.KINDS`."""
    full_participation: ClassVar[str | None] = "its analysis has every client in every round"
    """Why it is not for `participation` below 1; None where an unbiased average is all it needs."""
    term_maps: ClassVar[tuple[str, ...]] = ()
    """The oracle's maps by which its steps apply composite terms and constraints.

    "prox" or "mirror" of z, "prox_x" and "prox_y" of the players; () if it supports no terms."""
    needs_server: ClassVar[bool] = False
    """Whether its steps call `sync.server`."""
    measures: ClassVar[bool] = False
    """Whether it measures or checks hyperparameters before the first step; see `Measuring`."""
    averages: ClassVar[bool] = False
    """Whether a run evaluates the mean of its iterates too; see `fedsys.algorithms.Averaged`."""
    needs_samples: ClassVar[bool] = False
    """Whether it uses the operators of single samples, `fedsys.core.optional_oracles.FiniteSum`."""
    stackable: ClassVar[tuple[str, ...] | None] = None
    """The hyperparameters that may differ between runs that are stepped together, as rows [C, 1].

    None if its runs cannot be stacked: its steps need a server, or compare a row with another."""
    constant: ClassVar[Mapping[str, str]] = {}
    """The step sizes and weights that must not be a schedule, each with the reason."""

    def __post_init__(self) -> None:
        for name in self._theory_fields():
            if getattr(self, name) == THEORY.value:
                object.__setattr__(self, name, THEORY)
        for name, reason in self.constant.items():
            allowed = "a number or theory" if name in self._theory_fields() else "a number"
            is_constant = not isinstance(getattr(self, name), Schedule)
            self._require(is_constant, name, f"{allowed} ({reason})")
        super().__post_init__()

    @classmethod
    def _theory_fields(cls) -> list[str]:
        """The hyperparameters that a theorem can choose: by their type or by their default."""
        hints = type_hints(cls)
        return [
            field.name
            for field in fields(cls)
            if field.default is THEORY or _takes_theory(hints.get(field.name, field.type))
        ]

    @classmethod
    @override
    def _types(cls) -> dict[str, Any]:
        hints = dict(type_hints(cls))
        for field in fields(cls):
            # An annotation may name what a file imports for the type checker only.
            if field.name not in hints:
                hints[field.name] = _type_of_default(field.default)
        for name in cls._theory_fields():
            hints[name] = hints[name] | FromTheory
        return hints

    def _awaits_theory(self, name: str) -> bool:
        """Return whether a hyperparameter is left to the theory."""
        return getattr(self, name) is THEORY

    def _require(self, condition: bool, name: str, rule: str) -> None:
        """Refuse a hyperparameter: which, what it must be and what it is."""
        require(condition, type(self).__name__, name, getattr(self, name), rule)

    def _highest(self, name: str, otherwise: float) -> float:
        """Return the largest value that a hyperparameter takes; `otherwise` if theory chooses."""
        return otherwise if self._awaits_theory(name) else highest(getattr(self, name))

    def _require_positive(self, *names: str) -> None:
        for name in names:
            self._require(self._highest(name, 1.0) > 0, name, "positive")

    def _require_divisor(self, *names: str) -> None:
        """Refuse a schedule that reaches 0: the algorithm divides by these hyperparameters."""
        for name in names:
            value = getattr(self, name)
            reaches_zero = isinstance(value, Schedule) and value.reaches_zero
            self._require(not reaches_zero, name, "a schedule that stays above 0 (a divisor)")

    def _require_not_negative(self, *names: str, rule: str = "at least 0") -> None:
        for name in names:
            self._require(self._highest(name, 0.0) >= 0, name, rule)

    def _require_chance(self, *names: str) -> None:
        for name in names:
            self._require(0 < self._highest(name, 1.0) <= 1, name, "in (0, 1]")

    def awaiting_theory(self) -> list[str]:
        """The hyperparameters that are left to the theory."""
        return [field.name for field in fields(self) if self._awaits_theory(field.name)]

    def tuned(self, theory: Theory) -> Self:
        """Return the same algorithm with the theorem's numbers in place of every "theory"."""
        return self

    def planned(self, steps: int) -> Self:
        """Return the same algorithm for a run of `steps` steps."""
        return self

    def bound(self, theory: Theory) -> float | None:
        """Return the theorem's bound on the gap of the averaged iterate, or None without one."""
        return None

    @property
    def needs_full_operator(self) -> bool:
        """Whether it uses operators or gradients on all data of a client, not only draws."""
        return False

    def private_size(self, oracle: AnyOracle, steps: int) -> int:
        """Return how many of a point's last entries each client keeps to itself.

        `steps` steps led to the point. It is evaluated, and kept at the end, with the mean of the
        other entries and with each client's own values of these.
        """
        return 0

    def outputs(self, state: AnyState) -> dict[str, Tensor]:
        """The points that are evaluated, by the prefix of their metrics' names."""
        return {"": self.solution(state)}

    @property
    @abstractmethod
    def schedule(self) -> CommunicationSchedule:
        """When it communicates."""

    @abstractmethod
    def init(self, oracle: AnyOracle, sync: Sync) -> AnyState:
        """The state before the first step; `sync` communicates here."""

    @abstractmethod
    def step(self, state: AnyState, oracle: AnyOracle, sync: Sync) -> AnyState:
        """Return the state after one iteration of all hosted clients."""

    @abstractmethod
    def solution(self, state: AnyState) -> Tensor:
        """The point z = (x, y) [C, d] that the run is judged by."""


@runtime_checkable
class Measuring(Protocol):
    """An algorithm that measures some of its hyperparameters at the problem's starting point."""

    def measured(self, oracle: Any, sync: Sync) -> Self:
        """Return the same algorithm with the measured numbers; check those that are given."""


def _takes_theory(hint: Any) -> bool:
    """Return whether a type includes FromTheory; a string is a type that cannot be resolved."""
    if isinstance(hint, str):
        return FromTheory.__name__ in re.findall(r"\w+", hint)
    return hint is FromTheory or any(_takes_theory(argument) for argument in get_args(hint))


def _type_of_default(default: object) -> Any:
    """Return the type that a field without a resolvable annotation has by its default."""
    if default is THEORY or isinstance(default, float | Schedule):
        return Rate
    return type(default) if isinstance(default, bool | int | str) else Any


AnyAlgorithm = TypeVar("AnyAlgorithm", bound=Algorithm[Any, Any])


def fill_in(
    algorithm: AnyAlgorithm, theory: Theory, **numbers: Callable[[Constants], Rate]
) -> AnyAlgorithm:
    """Return the algorithm with numbers for those hyperparameters that are left to the theory.

    Args:
        algorithm: the algorithm.
        theory: the problem's constants and the length of the run.
        numbers: for each hyperparameter that a theorem can choose, its value as a function of the
            constants. A hyperparameter that the user has given keeps its value.
    """
    values: dict[str, Any] = {}
    waiting = algorithm.awaiting_theory()
    for name, number in numbers.items():
        if name in waiting:
            try:
                values[name] = number(theory.constants)
            except ZeroDivisionError:
                values[name] = nan
            if not (isinstance(values[name], Schedule) or isfinite(values[name])):
                raise _no_theory(algorithm, name, theory.constants)
    try:
        return replace(algorithm, **values)
    except InputError as error:
        raise _no_theory(algorithm, ", ".join(values), theory.constants) from error


def _no_theory(algorithm: object, name: str, c: Constants) -> InputError:
    return InputError(
        f"{type(algorithm).__name__}: {name}=theory has no value for this problem (mu={c.mu:.3g}, "
        f"L={c.L:.3g}, ell={c.ell_spectral:.3g}); give algorithm.{name} a number"
    )


def applies_terms(
    algorithm: Algorithm[Any, Any] | type[Algorithm[Any, Any]], maps: frozenset[str]
) -> bool:
    """Return whether an algorithm applies all terms of an oracle whose `maps` belong to terms."""
    whole = {"prox", "mirror"}
    applied = whole.intersection(algorithm.term_maps)
    if applied:
        return applied <= maps
    players = maps - whole
    return bool(players) and players.issubset(algorithm.term_maps)
