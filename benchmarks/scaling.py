"""`python -m benchmarks.scaling`: measure a round with up to 16 ranks, extrapolate to 1,000 hosts.

A ring all-reduce of b bytes over n ranks has 2 (n - 1) steps. In each step every rank sends b / n
bytes: T = 2 (n - 1) (alpha + b / (n B)) with latency alpha and bandwidth B. Ranks that share the
cores of one machine take n / cores times as long; with one host for each rank there is no such
factor. alpha and B are fitted to the measurements.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.ranks import started
from fedsys.communication import AllReduce, choose_transport
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every

RANKS = (2, 4, 8, 16)
FLOATS = (1_000, 30_000, 270_000, 2_000_000)
ROUNDS, WARM_UP = 15, 3
HOSTS = (16, 100, 1_000)
MODELS = {"logistic regression": 7_850, "ResNet20": 272_474, "DenseNet121": 7_000_000}
"""Number of parameters by model."""


@dataclass(frozen=True)
class Ring:
    """The alpha-beta model of a ring all-reduce."""

    latency: float
    """Seconds of a step of the ring without payload."""
    bandwidth: float
    """Bytes per second of a rank."""

    def seconds(self, ranks: int, size: float, cores: int | None = None) -> float:
        """Return the time of an all-reduce of `size` bytes; without `cores`, one rank per host."""
        shared = 1.0 if cores is None else max(1.0, ranks / cores)
        return shared * 2 * (ranks - 1) * (self.latency + size / ranks / self.bandwidth)


def fit(measured: dict[tuple[int, int], float], cores: int) -> Ring:
    """Fit a ring to seconds by (ranks, bytes) with least squares of the relative errors."""
    unit = [
        (Ring(1.0, np.inf).seconds(n, size, cores), Ring(0.0, 1.0).seconds(n, size, cores))
        for n, size in measured
    ]
    times = np.array(list(measured.values()))
    (latency, per_byte), *_ = np.linalg.lstsq(
        np.array(unit) / times[:, None], np.ones(len(times)), rcond=None
    )
    return Ring(float(latency), float(1 / per_byte))


def main() -> None:
    """Measure, fit the model, and print its prediction for a network of hosts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--latency", type=float, help="seconds per message between your hosts")
    parser.add_argument("--bandwidth", type=float, help="bytes per second between your hosts")
    given = parser.parse_args()
    cores = os.cpu_count() or 1
    measured = {
        (ranks, 4 * floats): seconds
        for ranks in RANKS
        for floats, seconds in _measure(ranks).items()
    }
    here = fit(measured, cores)
    print(f"{'ranks':>5} {'floats':>10} {'measured':>12} {'model':>12} {'ratio':>6}")
    for (ranks, size), seconds in measured.items():
        model = here.seconds(ranks, size, cores)
        print(f"{ranks:5} {size // 4:10,} {_ms(seconds)} {_ms(model)} {seconds / model:6.2f}")
    print(f"\n{cores} cores; latency {here.latency * 1e6:.0f} us, {here.bandwidth / 1e9:.2f} GB/s")
    network = Ring(given.latency or here.latency, given.bandwidth or here.bandwidth)
    print("\nA round of one field, one host per rank:")
    print(f"{'':20} " + " ".join(f"{hosts:>8,} hosts" for hosts in HOSTS))
    for name, floats in MODELS.items():
        times = " ".join(f"{_ms(network.seconds(hosts, 4 * floats)):>14}" for hosts in HOSTS)
        print(f"{name:20} {times}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:9.3g} ms"


def _measure(ranks: int) -> dict[int, float]:
    """Return the seconds of a round by number of floats, through gloo as between hosts."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (ranks, Path(folder)), nprocs=ranks)
        found: dict[int, float] = torch.load(Path(folder) / "times", weights_only=True)
    return found


def _rank(rank: int, ranks: int, folder: Path) -> None:
    with started(rank, ranks, folder), torch.no_grad():
        times = {floats: _round_seconds(rank, ranks, floats) for floats in FLOATS}
        if rank == 0:
            torch.save(times, folder / "times")


def _round_seconds(rank: int, ranks: int, floats: int) -> float:
    communicator = AllReduce()
    communicator.open(choose_transport(one_host=False), Placement(ranks, rank, ranks), Every(1))
    x, steps, times = torch.randn(1, floats), count(), []
    for _ in range(WARM_UP + ROUNDS):
        dist.barrier()
        start = perf_counter()
        communicator.at(next(steps))(x)
        times.append(perf_counter() - start)
    slowest = torch.tensor(times[WARM_UP:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(median(slowest.tolist()))


if __name__ == "__main__":
    main()
