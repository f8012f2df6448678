"""A local step of LocalSCGDAM against one of LocalSGDM: what the inner function costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from time import process_time
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from benchmarks.measure import Ratio, interleave, lasting, repeat, warm_up
from fedsys import config
from fedsys.algorithms import Algorithm, LocalSCGDAM, LocalSGDM
from fedsys.communication import AllReduce, LocalTransport
from fedsys.data import Dataset, Imbalance
from fedsys.problems import BinaryClassification, CompositionalAUC, Oracle, Problem, Site
from fedsys.runtime.runner import stepping

MODEL, INPUT_SHAPE = "cnn_table3", (1, 28, 28)
SAMPLES, BATCH = 2048, 32
NEVER = 10**9
SECONDS = 40.0
LIMITS = {"exact": 5.0, "identity": 3.2}
"""By the Jacobian: a gradient of each loss, and a Hessian-vector product if it is exact."""


@dataclass(frozen=True)
class Noise:
    """Images of noise with two labels."""

    def load(self) -> Dataset:
        """Draw them."""
        inputs = torch.randn(SAMPLES, *INPUT_SHAPE)
        labels = torch.arange(SAMPLES) % 2
        return Dataset(inputs, labels, inputs[:1], labels[:1], classes=2)


def measure() -> Iterator[Ratio]:
    """The ratio of both variants, in this process."""
    torch.set_num_threads(1)
    model = instantiate(OmegaConf.load(config.folder() / "model" / f"{MODEL}.yaml"))
    given: dict[str, Any] = {
        "dataset": Noise(),
        "model": model,
        "imbalance": Imbalance(None),
        "batch_size": BATCH,
    }
    theirs = _loop(LocalSGDM(local_steps=NEVER), BinaryClassification(**given))
    for jacobian, limit in LIMITS.items():
        problem = CompositionalAUC(**given, jacobian=jacobian)
        slices = (
            torch.no_grad()(repeat(loop, 1, process_time))
            for loop in (_loop(LocalSCGDAM(local_steps=NEVER), problem), theirs)
        )
        ours, plain = slices
        warm_up(ours, plain)
        times = interleave(ours, plain, lasting(SECONDS, at_least=30))
        yield Ratio(f"LocalSCGDAM, {jacobian}, {MODEL}", limit, *times)


def _loop(algorithm: Algorithm[Any, Any], problem: Problem[Oracle]) -> Callable[[], None]:
    """One local step as the runner makes it, each time it is called."""
    oracle, communicator = problem.oracle(Site()), AllReduce()
    communicator.open(LocalTransport(), Site().placement, algorithm.schedule, rider=oracle.rider)
    with stepping(oracle):
        state = algorithm.init(oracle.at_start(), communicator.at_start())
    steps = count()

    def step() -> None:
        nonlocal state
        t = next(steps)
        state = algorithm.step(state, oracle.at(t), communicator.at(t))

    return step
