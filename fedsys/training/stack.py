"""Runs that differ only in numbers and seeds, stepped together.

The clients of R runs are the rows of one state [R C, d]. Each run keeps its own draws, its own
communicator, hence its own means and coins, and its own records; only the arithmetic of a step is
shared. The numbers are those of separate runs up to rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.averaged import averaged
from fedsys.core.algorithm import Algorithm, State
from fedsys.core.errors import FedsysError
from fedsys.core.oracles import Oracle
from fedsys.problems.games.operator_oracle import OperatorOracle
from fedsys.problems.stacked import KINDS, StackedOracle
from fedsys.problems.stepping import SteppingOracle
from fedsys.training.autograd_mode import stepping
from fedsys.training.clock import TrainingClock
from fedsys.training.result import Result
from fedsys.training.runner import Runner
from fedsys.training.stacked_sync import pattern_of, stacked_sync

Outcome = Result | FedsysError
_MOST_NUMBERS = 2**21
"""The numbers of a variable of all runs of a stack: more leave the processor's caches."""


@dataclass
class Lane(Runner):
    """A run that may be stepped together with others.

    Args:
        oracles: the oracles of games by problem, seed and kind, which lanes share.
    """

    oracles: dict[Hashable, Oracle] = field(default_factory=dict)

    @override
    def _make_oracle(self) -> Oracle:
        key = id(self.problem), self.site, self.algorithm.kind
        if key not in self.oracles:
            oracle = super()._make_oracle()
            if not isinstance(oracle, OperatorOracle):
                return oracle
            self.oracles[key] = oracle
        return self.oracles[key]


def stack_key(lane: Lane) -> Hashable | None:
    """Return what the lanes of a stack have in common, after `prepare`; None for a run alone."""
    algorithm, oracle = lane.algorithm, lane.oracle
    names = stackable_names(type(algorithm))
    alone = names is None or algorithm.kind not in KINDS or not lane.observer.is_idle
    if alone or not isinstance(oracle, SteppingOracle) or lane.checkpoints is not None:
        return None
    if oracle.synchronised_buffers is not None or algorithm.needs_server:
        return None
    values = {f.name: getattr(algorithm, f.name) for f in fields(algorithm)}
    varying = [n for n in names or () if isinstance(values[n], int | float)]
    fixed = tuple((n, repr(v)) for n, v in values.items() if n not in varying)
    site = tuple(oracle.z0.shape), lane.site.dtype, lane.site.device, lane.site.placement
    return type(algorithm), fixed, type(oracle), site, lane.plan


def stackable_names(algorithm: type[Algorithm[Any, Any]]) -> tuple[str, ...] | None:
    """Return the hyperparameters that may differ between stacked runs; None for no stack.

    A class of a user declares `stackable` itself: it does not inherit that of a base class, whose
    steps it may have changed.
    """
    declares = "stackable" in vars(algorithm) or algorithm.__module__.startswith("fedsys.")
    return algorithm.stackable if declares else None


def run_lanes(lanes: Sequence[Lane], on_end: Callable[[Lane, Outcome], None]) -> None:
    """Run prepared lanes, together where that is possible; pass on each result or error."""
    groups: dict[Hashable, list[Lane]] = {}
    for number, lane in enumerate(lanes):
        key = stack_key(lane)
        groups.setdefault(("alone", number) if key is None else key, []).append(lane)
    for group in groups.values():
        most = max(1, _MOST_NUMBERS // max(1, _numbers(group[0])))
        for first in range(0, len(group), most):
            part = group[first : first + most]
            Stack(part, on_end).run() if len(part) > 1 else _run_alone(part[0], on_end)


def _run_alone(lane: Lane, on_end: Callable[[Lane, Outcome], None]) -> None:
    outcome: Outcome
    try:
        outcome = lane.run()
    except FedsysError as error:
        outcome = error
    on_end(lane, outcome)


def _numbers(lane: Lane) -> int:
    z0: Tensor | None = getattr(lane.oracle, "z0", None)
    return 1 if z0 is None else z0.numel()


class Stack:
    """Steps several lanes together.

    Args:
        lanes: prepared lanes with the same `stack_key`.
        on_end: called with each lane that ends, and its result or error; the others go on.
    """

    def __init__(self, lanes: Sequence[Lane], on_end: Callable[[Lane, Outcome], None]) -> None:
        first_use = {id(lane.oracle): n for n, lane in reversed([*enumerate(lanes)])}
        self._lanes = sorted(lanes, key=lambda lane: first_use[id(lane.oracle)])
        self._on_end = on_end
        self._clients = len(lanes[0].site.hosted)

    @torch.no_grad()
    @np.errstate(all="ignore")  # the next record of a lane finds and reports non-finite values
    def run(self) -> None:
        """Run all lanes to their ends."""
        clock = TrainingClock()
        with stepping(self._lanes[0].oracle):
            states = []
            for lane in self._lanes:
                lane.clock = clock
                states.append(lane.start()[0])
            state, step = _stacked(states), 0
            self._arrange()
            while self._lanes:
                entering = state
                state, communicated = self._step(state, step)
                step += 1
                ended = self._after(step, state, entering, communicated)
                if ended:
                    state = self._without(ended, state)

    def _arrange(self) -> None:
        """Prepare the oracle and the hyperparameters of the lanes that are left."""
        if self._lanes:
            self._oracle = StackedOracle([lane.oracle for lane in self._lanes])  # type: ignore[misc]
            self._method = averaged(_stacked_algorithm(self._lanes, self._clients))

    def _step(self, state: State, step: int) -> tuple[State, list[bool]]:
        """Return the next state, and which lanes communicated.

        Lanes whose coins differ need different steps. All lanes make each of them, which is pure,
        and keep their own; the operators of the first are not computed again.
        """
        syncs = [lane.communicator.at(step) for lane in self._lanes]
        patterns = [pattern_of(sync) for sync in syncs]
        oracle = self._oracle.at(step)
        new: State | None = None
        for pattern in dict.fromkeys(patterns):
            chosen = [own == pattern for own in patterns]
            at_step = oracle if all(chosen) else oracle.again()
            made = self._method.step(state, at_step, stacked_sync(syncs, chosen, self._clients))
            for lane, is_chosen in zip(self._lanes, chosen, strict=True):
                if is_chosen:
                    lane.count(at_step)
            new = made if new is None else _merged(new, made, chosen, self._clients)
        assert new is not None
        return new, [bool(sync) for sync in syncs]

    def _after(
        self, step: int, state: State, entering: State, communicated: list[bool]
    ) -> list[int]:
        """Record the lanes for which that is due; return the places of those that ended."""
        ended = []
        for place, lane in enumerate(self._lanes):
            if not (communicated[place] or step == 1 or step == lane.plan.steps):
                continue
            own = self._rows(state, place)
            try:
                lane.after(step, own, self._rows(entering, place), communicated[place])
                if lane.is_over:
                    self._on_end(lane, lane.finish(own, step))
            except FedsysError as error:
                lane.is_over = True
                self._on_end(lane, error)
            if lane.is_over:
                ended.append(place)
        return ended

    def _rows(self, state: State, place: int) -> State:
        rows = slice(place * self._clients, (place + 1) * self._clients)
        return type(state)(**{name: value[rows] for name, value in state.tensors().items()})

    def _without(self, ended: Sequence[int], state: State) -> State:
        """Remove lanes and their rows."""
        left = [place for place in range(len(self._lanes)) if place not in ended]
        states = [self._rows(state, place) for place in left]
        self._lanes = [self._lanes[place] for place in left]
        self._arrange()
        return _stacked(states) if states else state


def _stacked(states: Sequence[State]) -> State:
    tensors = [state.tensors() for state in states]
    return type(states[0])(
        **{name: torch.cat([own[name] for own in tensors]) for name in tensors[0]}
    )


def _merged(state: State, other: State, chosen: Sequence[bool], clients: int) -> State:
    """Return a state with the rows of the chosen runs from `other`."""
    old, new = state.tensors(), other.tensors()
    like = next(iter(old.values()))
    rows = torch.tensor(chosen, device=like.device).repeat_interleave(clients)

    def merge(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(rows.view(-1, *[1] * (a.dim() - 1)), b, a)

    return type(state)(**{name: merge(old[name], new[name]) for name in old})


def _stacked_algorithm(lanes: Sequence[Lane], clients: int) -> Algorithm[Any, Any]:
    """Return the lanes' algorithm with the hyperparameters that differ as rows [R C, 1]."""
    first = lanes[0].algorithm
    stacked, site = copy.copy(first), lanes[0].site
    for name in stackable_names(type(first)) or ():
        values = [getattr(lane.algorithm, name) for lane in lanes]
        if any(value != values[0] for value in values):
            column = torch.tensor(values, dtype=site.dtype, device=site.device)[:, None]
            # Each lane has checked its number; the class would refuse a tensor.
            object.__setattr__(stacked, name, column.repeat_interleave(clients, dim=0))
    return stacked
