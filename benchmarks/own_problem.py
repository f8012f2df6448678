"""Problems from functions in one process against the same updates in NumPy, vectorised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedsys
from benchmarks.measure import Ratio, interleave, lasting, repeat, warm_up
from fedsys.algorithms import LESGD, LSGD
from fedsys.communication import AllReduce, Communicator, LocalTransport
from fedsys.core.algorithm import Algorithm
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.problems import QuadraticGame
from fedsys.training.autograd_mode import stepping

CLIENTS, PLAYER, LR, K = 20, 20, 0.05, 20
BATCHED, MAPPED, AUTOGRAD = 1.5, 6.0, 15.0


def measure(seconds: float = 4.0) -> Iterator[Ratio]:
    """Yield the ratios of an iteration for batched, mapped and differentiated functions."""
    torch.set_num_threads(1)
    game = QuadraticGame(dim=PLAYER, samples=1)
    oracle = game.oracle(Site(Placement(CLIENTS), dtype=torch.float64))
    M, b = (part.numpy() for part in (oracle._mean_M, oracle._mean_b))
    z0 = torch.zeros(2 * PLAYER, dtype=torch.float64)
    transposed = np.ascontiguousarray(M.swapaxes(1, 2))

    def all_clients(z: Tensor, clients: Tensor) -> Tensor:
        F = np.vecmat(z.numpy(), transposed)
        F += b
        return torch.from_numpy(F)

    def one_client(z: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
        M, b = data
        return M @ z + b

    def loss(x: Tensor, y: Tensor, data: tuple[Tensor, ...]) -> Tensor:
        A, B, C, a, c = data
        return x @ (A @ x) / 2 + x @ (B @ y) - y @ (C @ y) / 2 + a @ x - c @ y

    players = [
        (m[:PLAYER, :PLAYER], m[:PLAYER, PLAYER:], m[PLAYER:, PLAYER:], v[:PLAYER], v[PLAYER:])
        for m, v in zip(M, b, strict=True)
    ]
    batched = fedsys.VariationalProblem(all_clients, z0, batched=True)
    mapped = fedsys.VariationalProblem(one_client, z0, client_data=list(zip(M, b, strict=True)))
    halves = (z0[:PLAYER], z0[PLAYER:])
    minimax = fedsys.MinimaxProblem(loss, *halves, client_data=players)
    lsgd, lesgd = LSGD(lr=LR, local_steps=K), LESGD(lr=LR, local_steps=K)
    for name, problem, limit in (
        ("VariationalProblem(batched=True)", batched, BATCHED),
        ("VariationalProblem", mapped, MAPPED),
        ("MinimaxProblem", minimax, AUTOGRAD),
    ):
        for algorithm, reference in ((lsgd, _lsgd), (lesgd, _lesgd)):
            title = f"{type(algorithm).__name__} on {name}"
            yield _ratio(title, limit, problem, algorithm, reference(M, b), seconds)


def _ratio(
    title: str,
    limit: float,
    problem: Any,
    algorithm: Algorithm[Any, Any],
    reference: Callable[[], None],
    seconds: float,
) -> Ratio:
    oracle = problem.oracle(Site(Placement(CLIENTS), dtype=torch.float64))
    slice_of_steps = repeat(steps(oracle, algorithm, AllReduce()), 200, process_time)

    def ours() -> float:
        with stepping(oracle):
            return slice_of_steps()

    theirs = repeat(reference, 200, process_time)
    warm_up(ours, theirs)
    return Ratio(title, limit, *interleave(ours, theirs, lasting(seconds, at_least=20)))


def steps(
    oracle: Any, algorithm: Algorithm[Any, Any], communicator: Communicator
) -> Callable[[], None]:
    """Return a function that makes the next step of all clients in this process."""
    communicator.open(LocalTransport(), oracle.site.placement, algorithm.schedule)
    state = algorithm.init(oracle.initial(), communicator.initial())
    t = 0

    def step() -> None:
        nonlocal state, t
        state = algorithm.step(state, oracle.at(t), communicator.at(t))
        t += 1

    return step


def _lsgd(M: np.ndarray, b: np.ndarray) -> Callable[[], None]:
    z, t = np.zeros_like(b), 0

    def step() -> None:
        nonlocal z, t
        z = z - LR * (np.matmul(M, z[:, :, None])[:, :, 0] + b)
        t += 1
        if t % K == 0:
            z = np.broadcast_to(z.mean(0), z.shape)

    return step


def _lesgd(M: np.ndarray, b: np.ndarray) -> Callable[[], None]:
    z, t = np.zeros_like(b), 0

    def step() -> None:
        nonlocal z, t
        half = z - LR * (np.matmul(M, z[:, :, None])[:, :, 0] + b)
        z = z - LR * (np.matmul(M, half[:, :, None])[:, :, 0] + b)
        t += 1
        if t % K == 0:
            z = np.broadcast_to(z.mean(0), z.shape)

    return step
