"""The Python API: runs without Hydra, in a notebook, a script, or a script under torchrun."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import replace
from os import PathLike
from typing import Any

import torch

from fedsys.communication import AdaptiveMatrix, Communicator, SkipCoin
from fedsys.communication.coins import GivenCoins
from fedsys.communication.skip_coin import use_coins
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
from fedsys.problems.stepping import GivenDraws, SteppingOracle
from fedsys.training.best_record import BestRecord
from fedsys.training.early_stopping import EarlyStopping
from fedsys.training.observer import Observer, OnStep
from fedsys.training.plan import Plan
from fedsys.training.result import Record, Result
from fedsys.training.runner import Runner
from fedsys.training.script_run import ScriptOutput

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
    on_step: OnStep | None = None,
    trajectory: bool | Collection[int] = False,
    coins: GivenCoins | None = None,
    draws: GivenDraws | None = None,
    early_stopping: EarlyStopping | None = None,
    keep: str = "last",
    run_dir: str | PathLike[str] | None = None,
    resume: bool | None = None,
    checkpoint_every: int = 50,
    progress: bool = False,
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
        on_step: called after every step with the number of steps and the state of the clients here.
        trajectory: True, or the steps whose states of all clients `Result.trajectory` has; 0 is the
            initial state. A run that is resumed has those of its own steps.
        coins: the shared coins in place of random ones: one for each step, a function of the step,
            or for several coins lists by name or a function of (step, name); "sync" communicates.
        draws: the samples in place of random ones, for finite sums: a function of (client, step, k)
            that returns an index, or those of a batch. Draws of the start count from k = 2**20.
        early_stopping: ends the run after records without improvement; None for never.
        keep: "last", or "best" for the variables of the best record by that metric.
        run_dir: the run directory, with the files that the command line writes; a run that is
            already in it is continued from its last checkpoint. By default nothing is written.
        resume: False refuses a directory that already holds a run.
        checkpoint_every: rounds between two checkpoints; 0: only every ten minutes and at the end.
        progress: whether to show the progress and the results, as the command line does.
    """
    where = ScriptOutput(run_dir, resume, checkpoint_every, progress, on_record)
    plan = Plan(steps, rounds, evaluate_every), BestRecord(early_stopping or EarlyStopping(), keep)
    observer, site = Observer(on_step, trajectory), (clients, seed, dtype, device)
    return _run(problem, algorithm, communicator, plan, site, observer, where, coins, draws)


def _run(
    problem: Problem[Oracle],
    algorithm: Algorithm[Any, Any],
    communicator: Communicator | None,
    length: tuple[Plan, BestRecord],
    where: tuple[int | None, int, str, str],
    observer: Observer,
    output: ScriptOutput,
    coins: GivenCoins | None,
    draws: GivenDraws | None,
) -> Result:
    world = World.from_environment()
    communicator = communicator or default_communicator(algorithm)
    site, (plan, best) = make_site(world, *where), length
    given = {
        **{"algorithm": algorithm, "problem": problem, "communicator": communicator},
        **{**vars(plan), "seed": site.seed, "dtype": where[2], "device": site.device},
        **{"coins": coins, "draws": draws},
        **{"early_stopping": dict(vars(best.options)), "keep": best.keep},
    }
    backend = connect(world, communicator)
    try:
        runner = Runner(problem, algorithm, communicator, world, site, plan, observer=observer)
        runner.best = best
        runner.on_warning = lambda line: warnings.warn(line, RuntimeWarning, stacklevel=2)
        _use_coins(coins, algorithm, communicator)
        runner.prepare()
        if draws is not None:
            _use_draws(draws, problem, runner.oracle)
        return _in_given_forms(output.run(runner, given, backend), runner.oracle)
    finally:
        world.disconnect()


def default_communicator(algorithm: Algorithm[Any, Any]) -> Communicator:
    """Return a communicator that offers what the algorithm needs: coins or a server."""
    return SkipCoin() if isinstance(algorithm.schedule, Coins) else AdaptiveMatrix()


def _in_given_forms(result: Result, oracle: Oracle) -> Result:
    """Return the variables of a problem from functions in the forms in which they were given."""
    if not isinstance(oracle, FunctionOracle):
        return result
    return replace(result, variables=oracle.assembled(result.variables))


def _use_coins(
    coins: GivenCoins | None, algorithm: Algorithm[Any, Any], communicator: Communicator
) -> None:
    """Give the communicator the user's coins; refuse an algorithm that flips none."""
    if coins is None and not isinstance(communicator, SkipCoin):
        return
    if coins is not None and not isinstance(algorithm.schedule, Coins):
        raise InputError(
            f"coins= is for algorithms that flip shared coins, and {type(algorithm).__name__} "
            "communicates after a fixed number of steps; use it with ProxSkip or ProxSkipLSVRGDA"
        )
    if not isinstance(communicator, SkipCoin):
        raise InputError(
            f"coins= needs communicator=SkipCoin(), got {type(communicator).__name__}; leave it out"
        )
    use_coins(communicator, coins)


def _use_draws(draws: GivenDraws, problem: object, oracle: Oracle) -> None:
    """Give the oracle the user's draws; refuse a problem that has no numbered samples."""
    if not isinstance(oracle, SteppingOracle):
        raise InputError(
            f"draws= needs an oracle derived from SteppingOracle, and that of "
            f"{type(problem).__name__} is not; draw the samples in the oracle itself"
        )
    oracle.use_draws(draws)


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
