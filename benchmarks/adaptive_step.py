"""A local step of FGDA and of AdaFGDA against the two gradients that it consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from time import process_time
from typing import Any

import torch

from benchmarks.local_step import BATCH, LR, SAMPLES, local_steps
from benchmarks.many_clients import Noise
from benchmarks.measure import Ratio, interleave, lasting, repeat, warm_up
from fedsys.algorithms import FGDA, AdaFGDA
from fedsys.communication import AdaptiveMatrix
from fedsys.models import MLP
from fedsys.problems import RobustNetwork, Site
from fedsys.problems.robust_network import RobustNetworkOracle

LIMIT, SECONDS = 1.10, 25.0


def measure() -> Iterator[Ratio]:
    """The ratio of both methods, in this process."""
    torch.set_num_threads(1)
    problem = RobustNetwork(Noise(SAMPLES, 784), model=MLP((200, 200)), batch_size=BATCH)
    oracle = problem.oracle(Site())
    numbers: dict[str, Any] = {"lr_x": LR, "lr_y": LR, "eta": 1.0, "alpha": 0.1, "beta": 0.1}
    numbers["local_steps"] = 2  # FGDA starts from as many samples as a round has steps
    for algorithm in (FGDA(**numbers), AdaFGDA(**numbers)):
        steps = local_steps(algorithm, oracle, AdaptiveMatrix())
        ours = torch.no_grad()(repeat(steps, 10, process_time))
        theirs = torch.no_grad()(repeat(_two_gradients(oracle), 10, process_time))
        warm_up(ours, theirs)
        times = interleave(ours, theirs, lasting(SECONDS, at_least=30))
        yield Ratio(f"{type(algorithm).__name__} step, 2 gradients", LIMIT, *times)


def _two_gradients(oracle: RobustNetworkOracle) -> Callable[[], None]:
    """Of one draw at one point, each time it is called."""
    steps = count()
    x, y = oracle.x0.clone(), oracle.y0.clone()

    def both() -> None:
        bound = oracle.at(next(steps))
        xi = bound.draw()
        bound.grads(x, y, xi)
        bound.grads(x, y, xi)

    return both
