"""Runs from Python, without Hydra: in a notebook, a script, or a script under torchrun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fedsys.algorithms import Algorithm
from fedsys.communication import AdaptiveMatrix, AllReduce, Coins, Placement, SkipCoin
from fedsys.errors import InputError
from fedsys.problems import Oracle, Problem, Site
from fedsys.runtime.plan import Plan
from fedsys.runtime.runner import Record, Result, Runner
from fedsys.runtime.world import World, choose_backend, choose_device, set_threads

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
    communicator: AllReduce | None = None,
    evaluate_every: int = 1,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Result:
    """Run an algorithm on a problem and return the final state and the records.

    Args:
        problem: what to solve, from `fedsys.problems` or your own.
        algorithm: how.
        steps: iterations to run; or
        rounds: communications to run.
        clients: how many; one per process by default.
        seed: of everything random.
        dtype: "float32" or "float64".
        device: "auto", "cpu", "cuda" or "cuda:N".
        communicator: how clients agree; chosen by what the algorithm needs by default.
        evaluate_every: rounds between two records.
        on_record: called with every record as it is made.
    """
    plan = Plan(steps, rounds, evaluate_every)
    world = World.from_environment()
    communicator = communicator or default_communicator(algorithm)
    site = make_site(world, clients, seed, dtype, device)
    connect(world, communicator)
    try:
        runner = Runner(problem, algorithm, communicator, world, site, plan, on_record=on_record)
        runner.prepare()
        return runner.run()
    finally:
        world.disconnect()


def default_communicator(algorithm: Algorithm[Any, Any]) -> AllReduce:
    """The one that can do what the algorithm asks for."""
    return SkipCoin() if isinstance(algorithm.schedule, Coins) else AdaptiveMatrix()


def make_site(world: World, clients: int | None, seed: int, dtype: str, device: str) -> Site:
    """Where this rank's clients live."""
    if dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if seed < 0:
        raise InputError(f"seed must not be negative, got {seed}")
    placement = Placement(world.ranks if clients is None else clients, world.rank, world.ranks)
    where = choose_device(device, world.local_rank, torch.cuda.device_count())
    return Site(placement, seed, DTYPES[dtype], where)


def connect(world: World, communicator: AllReduce) -> str:
    """Meet the other ranks; returns the backend."""
    set_threads(world.local_ranks)
    gpus = torch.cuda.device_count()
    backend = choose_backend(communicator.backend, world.local_ranks, gpus)
    if backend == "nccl":
        torch.cuda.set_device(world.local_rank)
    world.connect(
        backend,
        communicator.timeout,
        communicator.startup_timeout,
        communicator.shared_memory and backend == "gloo",
    )
    return backend
