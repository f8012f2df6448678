"""The Python API: runs without Hydra, in a notebook, a script, or a script under torchrun."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fedsys.communication import AdaptiveMatrix, Communicator, SkipCoin
from fedsys.core.algorithm import Algorithm
from fedsys.core.errors import InputError
from fedsys.core.fields import check_types, type_hints
from fedsys.core.oracles import Oracle, Problem
from fedsys.core.placement import Placement
from fedsys.core.rounds import Coins
from fedsys.core.site import Site
from fedsys.distributed.parent import end_with_launcher
from fedsys.distributed.world import World, choose_backend, choose_device, set_threads
from fedsys.problems.custom.function_oracle import FunctionOracle
from fedsys.training.plan import Plan
from fedsys.training.result import Record, Result
from fedsys.training.runner import Runner

MOST_CLIENTS = 10**6
"""A limit on the memory that a mistyped number of clients can allocate: one row for each."""
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def run(
    problem: Problem[Oracle],
    algorithm: Algorithm[Any, Any],
    *,
    steps: int | None = None,
    rounds: int | None = None,
    clients: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "auto",
    communicator: Communicator | None = None,
    evaluate_every: int = 1,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Result:
    """Run an algorithm on a problem and return the final state and the records.

    Args:
        problem: what to solve, from `fedsys.problems` or your own.
        algorithm: how to solve it, from `fedsys.algorithms` or your own.
        steps: the number of iterations; give either `steps` or `rounds`.
        rounds: the number of communication rounds.
        clients: the number of clients; one per process by default.
        seed: the seed of all random numbers.
        dtype: "float32" or "float64".
        device: "auto", "cpu", "cuda" or "cuda:N".
        communicator: how clients communicate; by default the one that the algorithm needs.
        evaluate_every: the number of rounds between two records.
        on_record: called with every record when it is measured.
    """
    plan = Plan(steps, rounds, evaluate_every)
    world = World.from_environment()
    communicator = communicator or default_communicator(algorithm)
    site = make_site(world, clients, seed, dtype, device)
    connect(world, communicator)
    try:
        runner = Runner(problem, algorithm, communicator, world, site, plan, on_record=on_record)
        runner.on_warning = lambda line: warnings.warn(line, RuntimeWarning, stacklevel=2)
        runner.prepare()
        result = runner.run()
        if isinstance(runner.oracle, FunctionOracle):
            return replace(result, variables=runner.oracle.assembled(result.variables))
        return result
    finally:
        world.disconnect()


def default_communicator(algorithm: Algorithm[Any, Any]) -> Communicator:
    """Return a communicator that offers what the algorithm needs: coins or a server."""
    return SkipCoin() if isinstance(algorithm.schedule, Coins) else AdaptiveMatrix()


def make_site(world: World, clients: int | None, seed: int, dtype: str, device: str) -> Site:
    """Return the site of this rank; refuse a setting of the wrong type or out of range."""
    if dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    given = {"clients": clients, "seed": seed, "device": device}
    check_types("run", type_hints(make_site), given)
    if clients is not None and clients > MOST_CLIENTS:
        raise InputError(f"clients must be at most {MOST_CLIENTS}, got {clients}")
    if seed < 0:
        raise InputError(f"seed must not be negative, got {seed}")
    placement = Placement(world.ranks if clients is None else clients, world.rank, world.ranks)
    where = choose_device(device, world.local_rank, torch.cuda.device_count())
    return Site(placement, seed, DTYPES[dtype], where)


def connect(world: World, communicator: Communicator) -> str:
    """Connect to the other ranks; return the backend."""
    end_with_launcher()
    set_threads(world.local_ranks)
    gpus = torch.cuda.device_count()
    options = communicator.connection
    backend = choose_backend(options.backend, world.local_ranks, gpus)
    if backend == "nccl":
        torch.cuda.set_device(world.local_rank)
    world.connect(
        backend,
        options.timeout,
        options.startup_timeout,
        options.shared_memory and backend == "gloo",
    )
    return backend
