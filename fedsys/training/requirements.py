"""The requirements of an algorithm on the problem and the run, checked before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedsys.algorithms import known_algorithms
from fedsys.communication import Communicator
from fedsys.core.algorithm import Algorithm, applies_terms
from fedsys.core.constants import Theory
from fedsys.core.errors import InputError, KindError, TermError
from fedsys.core.kinds import kinds_of
from fedsys.core.optional_oracles import FiniteSum
from fedsys.core.oracles import Estimated, Oracle, Problem
from fedsys.core.placement import Placement
from fedsys.distributed.world import World
from fedsys.problems.terms import describe_terms, maps_of_terms
from fedsys.training.plan import Plan


def check_requirements(
    algorithm: Algorithm[Any, Any],
    problem: Problem[Oracle],
    oracle: Oracle,
    communicator: Communicator,
    world: World,
) -> None:
    """Refuse, on all ranks, a problem or an option that the algorithm does not support."""
    kinds = kinds_of(oracle)
    if algorithm.kind not in kinds:
        raise KindError(algorithm, problem, kinds)
    _check_terms(algorithm, problem, oracle)
    reason, participation = algorithm.full_participation, communicator.aggregation.participation
    if participation < 1 and reason:
        raise InputError(
            f"participation={participation:g} does not work with "
            f"{type(algorithm).__name__}, which needs all clients in every round: {reason}"
        )
    if algorithm.needs_full_operator:
        world.on_all_ranks(lambda: _check_full_operator(algorithm, problem, oracle))
    if algorithm.needs_samples:
        _check_samples(algorithm, problem, oracle)


def _check_terms(algorithm: Algorithm[Any, Any], problem: Problem[Oracle], oracle: Oracle) -> None:
    """Refuse a problem with a term that the algorithm would ignore."""
    maps = maps_of_terms(oracle)
    if maps and not applies_terms(algorithm, maps):
        same_kind = [one for one in known_algorithms() if one.kind == algorithm.kind]
        others = [one.__name__ for one in same_kind if applies_terms(one, maps)]
        raise TermError(algorithm, problem, describe_terms(oracle), maps, others)


@torch.no_grad()
def _check_full_operator(
    algorithm: Algorithm[Any, Any], problem: Problem[Oracle], oracle: Oracle
) -> None:
    """Refuse functions that are given by random draws only, whose means are unknown."""
    reason = oracle.unknown_mean() if isinstance(oracle, Estimated) else None
    if reason is not None:
        raise InputError(
            f"{type(algorithm).__name__} needs full operators or gradients of "
            f"{type(problem).__name__}, but {reason}; or use an algorithm that needs draws only"
        )


def _check_samples(
    algorithm: Algorithm[Any, Any], problem: Problem[Oracle], oracle: Oracle
) -> None:
    """Refuse problems that do not draw samples, or whose samples are not known one by one."""
    name, what = type(algorithm).__name__, type(problem).__name__
    if not isinstance(oracle, FiniteSum):
        raise InputError(
            f"{name} needs operators of single samples, which {what} does not offer; use "
            "estimator=lsvrg or sgda, or a problem that is a finite sum"
        )
    if not oracle.finite_sum:
        raise InputError(
            f"{name} needs draws of single samples, but {what} draws all of them; give "
            "problem.batch_size a number, or use estimator=full"
        )


def theory_of(
    waiting: Sequence[str],
    algorithm: Algorithm[Any, Any],
    problem: Problem[Oracle],
    oracle: Oracle,
    communicator: Communicator,
    placement: Placement,
    plan: Plan,
) -> Theory:
    """Return the constants for the hyperparameters `waiting`; refuse a problem without them."""
    constants = oracle.constants(communicator.unmetered())
    if constants is None:
        raise InputError(
            f"{type(algorithm).__name__}: {waiting[0]}=theory needs the constants of the problem, "
            f"which {type(problem).__name__} does not know; give algorithm.{waiting[0]} a number"
        )
    samples, batch_size = _samples(oracle, communicator)
    return Theory(
        constants,
        placement.clients,
        plan.steps,
        plan.rounds,
        oracle.finite_sum,
        frozenset(waiting),
        bool(maps_of_terms(oracle)),
        communicator.takes_exact_means,
        samples,
        batch_size,
    )


def _samples(oracle: Oracle, communicator: Communicator) -> tuple[tuple[int, int], int]:
    """Return the fewest and the most samples of all clients, and those of a draw."""
    if not (isinstance(oracle, FiniteSum) and oracle.finite_sum):
        return (1, 1), 1
    hosted = torch.tensor(oracle.sizes, dtype=torch.float64)[:, None]
    sizes = communicator.unmetered().gather(hosted)
    return (int(sizes.min()), int(sizes.max())), oracle.batch_size or 1
