"""Time per client and memory of a run with up to 10,000 clients in one process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import process_time

import torch

from benchmarks.measure import Ratio, interleave, lasting, peak_memory, repeat, warm_up
from fedsys.algorithms import FedAvg
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import Dataset
from fedsys.models import MLP
from fedsys.problems import Classification

FEW, MANY, TIME_LIMIT = 10, 1_000, 0.5
CLIENTS, SAMPLES, WIDTH, CLASSES, MEMORY_LIMIT = 10_000, 50, 784, 10, 1.5


@dataclass(frozen=True)
class Noise:
    """Random inputs with ten classes."""

    samples: int
    width: int

    def load(self) -> Dataset:
        """Draw the samples."""
        inputs = torch.randn(self.samples, self.width)
        labels = torch.arange(self.samples) % CLASSES
        return Dataset(inputs, labels, inputs[:10], labels[:10], classes=CLASSES)


def measure() -> Iterator[Ratio]:
    """Yield the time per client of many over few, and the memory of a run over state and data."""
    torch.set_num_threads(1)
    ours, theirs = (
        torch.no_grad()(
            repeat(_rounds(Classification(Noise(60 * n, 64), model=MLP([32])), n), 1, _clock_per(n))
        )
        for n in (MANY, FEW)
    )
    warm_up(ours, theirs)
    times = interleave(ours, theirs, lasting(20.0, at_least=20))
    yield Ratio(f"per client, {MANY:,} or {FEW} hosted", TIME_LIMIT, *times)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        peak, needed = pool.apply(_memory)
    yield Ratio(f"memory, {CLIENTS:,} clients", MEMORY_LIMIT, [peak], [needed], unit="bytes")


def _clock_per(clients: int) -> Callable[[], float]:
    return lambda: process_time() / clients


def _rounds(problem: Classification, clients: int) -> Callable[[], None]:
    """Return a function that executes one round in the way the runner does."""
    site = Site(Placement(clients))
    oracle, communicator = problem.oracle(site), AllReduce()
    algorithm = FedAvg(lr=0.01, local_steps=5)
    communicator.open(LocalTransport(), site.placement, algorithm.schedule)
    state = algorithm.init(oracle.initial(), communicator.initial())
    t = 0

    def one_round() -> None:
        nonlocal state, t
        for _ in range(algorithm.local_steps):
            state = algorithm.step(state, oracle.at(t), communicator.at(t))
            t += 1

    return one_round


def _memory() -> tuple[float, float]:
    """Return by how much a new process grows in three rounds, and the bytes of state and data."""
    torch.set_num_threads(1)
    with torch.no_grad():
        _rounds(Classification(Noise(40, WIDTH), model=MLP([]), batch_size=10), 4)()
        before = peak_memory()
        problem = Classification(Noise(CLIENTS * SAMPLES, WIDTH), model=MLP([]), batch_size=10)
        one_round = _rounds(problem, CLIENTS)
        for _ in range(3):
            one_round()
    state = CLIENTS * (WIDTH + 1) * CLASSES * 4
    return peak_memory() - before, state + CLIENTS * SAMPLES * (WIDTH * 4 + 8)
