"""A communication round of fedsys against one all_reduce of the same bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import Tensor

from benchmarks.measure import Ratio, lasting, repeat
from benchmarks.ranks import interleave_on_all_ranks, started
from benchmarks.reference import raw_all_reduce
from fedsys.communication import AllReduce, choose_transport
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every

LIMIT = 1.15
RANKS = (2, 4)
CALLS_PER_SLICE = {1_000: 20, 270_000: 8, 7_000_000: 1}
"""Calls by number of floats, so that a slice takes some ten milliseconds."""
SECONDS = 16.0
"""Measuring time of each ratio."""


def measure() -> Iterator[Ratio]:
    """Yield the ratio for each number of ranks and each size."""
    for ranks in RANKS:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_rank, (ranks, Path(folder)), nprocs=ranks)
            for floats in CALLS_PER_SLICE:
                name = f"round, {ranks} ranks, {floats:,} floats"
                yield Ratio(name, LIMIT, *torch.load(Path(folder) / str(floats), weights_only=True))


def _rank(rank: int, ranks: int, folder: Path) -> None:
    """Measure on one rank; rank 0 writes the times of each size to the folder."""
    with started(rank, ranks, folder):
        for floats, calls in CALLS_PER_SLICE.items():
            ours = repeat(_fedsys_round(rank, ranks, floats), calls)
            theirs = repeat(raw_all_reduce(floats), calls)
            times = interleave_on_all_ranks(ours, theirs, lasting(SECONDS, at_least=30))
            if rank == 0:
                torch.save(times, folder / str(floats))


def _fedsys_round(rank: int, ranks: int, floats: int) -> Callable[[], Tensor]:
    """Return a function that executes the averaging of one communication step."""
    communicator = AllReduce()
    communicator.open(choose_transport(one_host=True), Placement(ranks, rank, ranks), Every(1))
    x = torch.randn(1, floats)
    steps = count()

    @torch.no_grad()
    def average() -> Tensor:
        sync = communicator.at(next(steps))
        return sync(x)

    return average
