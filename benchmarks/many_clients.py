"""From ten to thousands of clients in one process: the time of a round, and the memory of a run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import process_time

import torch

from benchmarks.measure import Ratio, interleave, lasting, peak_memory, repeat, warm_up
from fedsys.algorithms import FedAvg
from fedsys.communication import AllReduce, LocalTransport, Placement
from fedsys.data import Dataset
from fedsys.models import MLP
from fedsys.problems import Classification, Site

FEW, MANY, TIME_LIMIT = 10, 1_000, 0.5
CLIENTS, SAMPLES, WIDTH, CLASSES, MEMORY_LIMIT = 10_000, 50, 784, 10, 1.5


@dataclass(frozen=True)
class Noise:
    """Random inputs with classes."""

    samples: int
    width: int

    def load(self) -> Dataset:
        """Draw them."""
        inputs = torch.randn(self.samples, self.width)
        labels = torch.arange(self.samples) % CLASSES
        return Dataset(inputs, labels, inputs[:10], labels[:10], classes=CLASSES)


def measure() -> Iterator[Ratio]:
    """Time per client of many and of few, and the bytes of a run over those of state and data."""
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
    """A round as the runner makes it, each time it is called."""
    site = Site(Placement(clients))
    oracle, communicator = problem.oracle(site), AllReduce()
    algorithm = FedAvg(lr=0.01, local_steps=5)
    communicator.open(LocalTransport(), site.placement, algorithm.schedule)
    state = algorithm.init(oracle.at_start(), communicator.at_start())
    t = 0

    def one_round() -> None:
        nonlocal state, t
        for _ in range(algorithm.local_steps):
            state = algorithm.step(state, oracle.at(t), communicator.at(t))
            t += 1

    return one_round


def _memory() -> tuple[float, float]:
    """The growth of a fresh process in three rounds, and the bytes of its state and data."""
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
