"""ProxSkip on the quadratic game in one process against the same update in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import process_time

import numpy as np
import torch

from benchmarks.measure import Ratio, interleave, lasting, repeat, warm_up
from benchmarks.own_problem import steps
from fedsys.algorithms import ProxSkip
from fedsys.communication import SkipCoin
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.problems import QuadraticGame
from fedsys.problems.games.affine import AffineOracle
from fedsys.training.autograd_mode import stepping

CLIENTS, LR, P = 20, 0.4379, 0.4325  # the theory's values for seed 0
ITERATIONS = 10_000
LIMIT = 1.2


def measure(seconds: float = 10.0) -> Iterator[Ratio]:
    """Yield the ratio of an iteration, over at least 10,000, with all clients in one process."""
    torch.set_num_threads(1)
    oracle = QuadraticGame().oracle(Site(Placement(CLIENTS), dtype=torch.float64))
    fedsys_slice = repeat(steps(oracle, ProxSkip(lr=LR, p=P), SkipCoin()), 500, process_time)

    def ours() -> float:
        with stepping(oracle):
            return fedsys_slice()

    theirs = repeat(_numpy_loop(*_mean_games(oracle)), 500, process_time)
    warm_up(ours, theirs)
    pairs = ITERATIONS // 500
    times = interleave(ours, theirs, lasting(seconds, at_least=pairs))
    yield Ratio("ProxSkip, 20 clients", LIMIT, *times)


def _mean_games(oracle: AffineOracle) -> tuple[np.ndarray, np.ndarray]:
    """Return M [clients, d, d] and b [clients, d] of the affine operator Mz + b."""
    dim = oracle.z0.shape[1]
    at_zero = oracle.full_operator(torch.zeros_like(oracle.z0))
    columns = [
        oracle.full_operator(unit.expand(CLIENTS, dim)) - at_zero
        for unit in torch.eye(dim, dtype=torch.float64)
    ]
    return torch.stack(columns, dim=2).numpy(), at_zero.numpy()


def _numpy_loop(M: np.ndarray, b: np.ndarray) -> Callable[[], None]:
    """Return the update in NumPy, vectorised over the clients."""
    x = h = np.zeros_like(b)
    coins = np.random.default_rng(0)

    def step() -> None:
        nonlocal x, h
        g = np.matmul(M, x[:, :, None])[:, :, 0] + b
        x_hat = x - LR * (g - h)
        if coins.random() < P:
            x = np.broadcast_to((x_hat - LR / P * h).mean(0), x_hat.shape)
            h = h + P / LR * (x - x_hat)
        else:
            x = x_hat

    return step
