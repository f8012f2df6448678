"""What a checkpoint every 50 steps adds to a step of ResNet20, by the processor's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import torch

from benchmarks.local_step import BATCH, LR, RESNET20, local_steps, make_oracle, random_labels
from benchmarks.measure import Ratio, interleave, lasting, repeat, warm_up
from fedsys.algorithms import FedAvg
from fedsys.problems.network import NetworkOracle
from fedsys.runtime.checkpoint import Checkpoints, Snapshot
from fedsys.runtime.world import World

EVERY = 50
LIMIT = 1.03


def measure() -> Iterator[Ratio]:
    """Steps with their share of a checkpoint against steps without."""
    torch.set_num_threads(1)
    inputs = torch.randn(4 * BATCH, *RESNET20.input_shape)
    oracle = make_oracle(RESNET20, inputs, random_labels(len(inputs), outputs=1))
    step = torch.no_grad()(repeat(local_steps(FedAvg(lr=LR), oracle), 1, process_time))
    with TemporaryDirectory() as folder:
        save = repeat(_saves(oracle, Path(folder)), 1, process_time)

        def with_checkpoint() -> float:
            return step() + save() / EVERY

        warm_up(with_checkpoint, step)
        times = interleave(with_checkpoint, step, lasting(30.0, at_least=30))
    yield Ratio(f"checkpoint each {EVERY} steps, ResNet20", LIMIT, *times)


def _saves(oracle: NetworkOracle, folder: Path) -> Callable[[], None]:
    """A whole checkpoint each time it is called: the copy, and what its thread does."""
    checkpoints, steps = Checkpoints(folder, World()), count()

    def save() -> None:
        fields = {"x": oracle.z0}
        checkpoints.save(Snapshot(next(steps), 0.0, {}), fields, oracle.rider, oracle.site)
        checkpoints.finish()

    return save
