"""A local step of LocalSCGDAM against one of LocalSGDM: the cost of the inner function."""

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
from fedsys.algorithms import LocalSCGDAM, LocalSGDM
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.algorithm import Algorithm
from fedsys.core.oracles import Oracle, Problem
from fedsys.core.site import Site
from fedsys.data import Dataset, Imbalance
from fedsys.problems import BinaryClassification, CompositionalAUC
from fedsys.training import config
from fedsys.training.autograd_mode import stepping

MODEL, INPUT_SHAPE = "cnn_table3", (1, 28, 28)
SAMPLES, BATCH = 2048, 32
NEVER = 10**9
SECONDS = 40.0
LIMITS = {"exact": 5.0, "identity": 3.2}
"""Limits by Jacobian. A step has one gradient per loss, plus a Hessian-vector product if exact."""


@dataclass(frozen=True)
class Noise:
    """Random images with two classes."""

    def load(self) -> Dataset:
        """Draw the samples."""
        inputs = torch.randn(SAMPLES, *INPUT_SHAPE)
        labels = torch.arange(SAMPLES) % 2
        return Dataset(inputs, labels, inputs[:1], labels[:1], classes=2)


def measure() -> Iterator[Ratio]:
    """Yield the ratio of each variant, measured in this process."""
    torch.set_num_threads(1)
    model = instantiate(OmegaConf.load(config.folder() / "model" / f"{MODEL}.yaml"))
    given: dict[str, Any] = {
        "dataset": Noise(),
        "model": model,
        "imbalance": Imbalance(None),
        "batch_size": BATCH,
    }
    theirs = _loop(LocalSGDM(local_steps=NEVER, decay_at=()), BinaryClassification(**given))
    for jacobian, limit in LIMITS.items():
        problem = CompositionalAUC(**given, jacobian=jacobian)
        slices = (
            torch.no_grad()(repeat(loop, 1, process_time))
            for loop in (_loop(LocalSCGDAM(local_steps=NEVER, decay_at=()), problem), theirs)
        )
        ours, plain = slices
        warm_up(ours, plain)
        times = interleave(ours, plain, lasting(SECONDS, at_least=30))
        yield Ratio(f"LocalSCGDAM, {jacobian}, {MODEL}", limit, *times)


def _loop(algorithm: Algorithm[Any, Any], problem: Problem[Oracle]) -> Callable[[], None]:
    """Return a function that executes one local step in the way the runner does."""
    oracle, communicator = problem.oracle(Site()), AllReduce()
    communicator.open(
        LocalTransport(),
        Site().placement,
        algorithm.schedule,
        synchronised_buffers=oracle.synchronised_buffers,
    )
    with stepping(oracle):
        state = algorithm.init(oracle.initial(), communicator.initial())
    steps = count()

    def step() -> None:
        nonlocal state
        t = next(steps)
        state = algorithm.step(state, oracle.at(t), communicator.at(t))

    return step
