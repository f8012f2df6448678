"""Seeds and hyperparameters side by side in one process."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from fedsys.communication import Communicator
from fedsys.core.algorithm import Algorithm
from fedsys.core.errors import FedsysError, InputError
from fedsys.core.oracles import Oracle, Problem
from fedsys.distributed.world import World
from fedsys.training.api import connect, default_communicator, make_site
from fedsys.training.plan import Plan
from fedsys.training.result import Result
from fedsys.training.stack import Lane, Outcome, run_lanes
from fedsys.training.sweep_result import SweepResult, SweepRun, setting_label

Algorithms = Algorithm[Any, Any] | Sequence[Algorithm[Any, Any]] | Mapping[str, Algorithm[Any, Any]]
"""One algorithm, several, or several by name."""
_Planned = tuple[str, dict[str, Any], Lane]
"""A run: the name of its algorithm, the hyperparameters of the sweep, and the lane."""


def sweep(
    problem: Problem[Oracle],
    algorithms: Algorithms,
    *,
    seeds: Sequence[int] = (0,),
    steps: int | None = None,
    rounds: int | None = None,
    clients: int | None = None,
    dtype: str = "float64",
    device: str = "auto",
    communicator: Communicator | None = None,
    evaluate_every: int = 1,
    on_end: Callable[[SweepRun], None] = lambda run: None,
    **grid: Any,
) -> SweepResult:
    """Run algorithms with all combinations of hyperparameters and seeds, in one process.

    Runs that differ only in numbers and seeds are stepped together, if the algorithm declares these
    numbers in `stackable` and the problem is a game or a minimisation without BatchNorm. Their
    numbers are those of `fedsys.run` up to rounding. All other runs follow one another. A run that
    diverges ends alone; one that is refused is left out with a warning.

    Args:
        problem: what to solve.
        algorithms: one algorithm, several, or several by name.
        seeds: the seeds.
        steps: the number of iterations; give either `steps` or `rounds`.
        rounds: the number of communication rounds.
        clients: the number of clients; 1 by default.
        dtype: "float32" or "float64".
        device: "auto", "cpu", "cuda" or "cuda:N".
        communicator: how clients communicate; every run has a copy of its own.
        evaluate_every: the number of rounds between two records.
        on_end: called with every run that has ended.
        grid: the values of hyperparameters by name, such as `lr=[0.1, 0.01, "theory"]`; an
            algorithm without a hyperparameter of that name ignores it, if another one has it.
    """
    plan = Plan(steps, rounds, evaluate_every)
    world = World.from_environment()
    if world.ranks > 1:
        raise InputError(
            f"fedsys.sweep runs in one process, got {world.ranks} ranks; start it without torchrun"
        )
    _refuse_repeated("seeds", seeds)
    oracles: dict[Any, Oracle] = {}
    planned: list[_Planned] = []
    for name, algorithm, numbers in _settings(named_algorithms(algorithms), grid):
        for seed in seeds:
            own = default_communicator(algorithm) if communicator is None else communicator
            site = make_site(world, clients, seed, dtype, device)
            lane = Lane(problem, algorithm, copy.deepcopy(own), world, site, plan, oracles=oracles)
            lane.on_warning = partial(_warn, f"{setting_label(name, numbers)}, seed {seed}")
            planned.append((name, numbers, lane))
    if not planned:
        raise InputError("sweep: no runs; give at least one algorithm, value and seed")
    connect(world, planned[0][2].communicator)
    try:
        return _run(planned, on_end)
    finally:
        world.disconnect()


def _run(planned: Sequence[_Planned], on_end: Callable[[SweepRun], None]) -> SweepResult:
    settings = {id(lane): (name, numbers) for name, numbers, lane in planned}
    ended: dict[int, SweepRun] = {}

    def end(lane: Lane, outcome: Outcome) -> None:
        result = outcome if isinstance(outcome, Result) else None
        error = outcome if isinstance(outcome, FedsysError) else None
        name, numbers = settings[id(lane)]
        given = lane.algorithm, lane.records, result, error
        ended[id(lane)] = run = SweepRun(name, numbers, lane.site.seed, *given)
        on_end(run)

    lanes = [lane for _, _, lane in planned]
    run_lanes(_prepared(lanes, end), end)
    return SweepResult([ended[id(lane)] for lane in lanes])


def _prepared(lanes: Sequence[Lane], end: Callable[[Lane, Outcome], None]) -> list[Lane]:
    """Prepare the lanes; end those that are refused, or raise the error if that is all of them."""
    ready, refused = [], []
    for lane in lanes:
        try:
            lane.prepare()
            ready.append(lane)
        except InputError as error:
            refused.append((lane, error))
    if not ready:
        raise refused[0][1]
    for lane, reason in refused:
        end(lane, reason)
        warnings.warn(f"sweep: a run is left out: {reason}", RuntimeWarning, stacklevel=3)
    return ready


def named_algorithms(algorithms: Algorithms) -> dict[str, Algorithm[Any, Any]]:
    """Return the algorithms by name; those of one class are numbered."""
    if isinstance(algorithms, Mapping):
        return dict(algorithms)
    listed = [algorithms] if isinstance(algorithms, Algorithm) else list(algorithms)
    for one in listed:
        if not isinstance(one, Algorithm):
            raise InputError(f"sweep: {one!r} is not an algorithm; give LSGD(lr=0.1), for example")
    classes = [type(one).__name__ for one in listed]
    numbers = [classes[: n + 1].count(name) for n, name in enumerate(classes)]
    return {
        name if classes.count(name) == 1 else f"{name} {number}": one
        for name, number, one in zip(classes, numbers, listed, strict=True)
    }


def _settings(
    algorithms: Mapping[str, Algorithm[Any, Any]], grid: Mapping[str, Any]
) -> list[tuple[str, Algorithm[Any, Any], dict[str, Any]]]:
    """Return every algorithm with every combination of the values that it has."""
    values = {name: _listed(given) for name, given in grid.items()}
    for name, listed in values.items():
        _refuse_repeated(name, listed)
        if not any(hasattr(one, name) for one in algorithms.values()):
            known = ", ".join(dict.fromkeys(type(one).__name__ for one in algorithms.values()))
            raise InputError(f"sweep: {known} has no hyperparameter {name}; see its documentation")
    found = []
    for label, algorithm in algorithms.items():
        own = {name: given for name, given in values.items() if hasattr(algorithm, name)}
        for chosen in product(*own.values()):
            numbers = dict(zip(own, chosen, strict=True))
            found.append((label, replace(algorithm, **numbers), numbers))
    return found


def _listed(given: Any) -> list[Any]:
    is_list = hasattr(given, "__iter__") and not isinstance(given, str)
    return list(given) if is_list else [given]


def _refuse_repeated(name: str, values: Sequence[Any]) -> None:
    """Refuse a value that is listed twice: its runs would count as those of another seed."""
    for place, value in enumerate(values):
        if value in values[:place]:
            raise InputError(f"sweep: {name} lists {value!r} twice; list every value once")


def _warn(run: str, line: str) -> None:
    warnings.warn(f"sweep: {run}: {line}", RuntimeWarning, stacklevel=2)
