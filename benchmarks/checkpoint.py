"""The CPU time that a checkpoint every 50 steps adds to a step of ResNet20."""

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
from fedsys.distributed.world import World
from fedsys.problems.networks.network_oracle import NetworkOracle
from fedsys.training.checkpoint import Checkpoints, Snapshot

EVERY = 50
LIMIT = 1.03


def measure() -> Iterator[Ratio]:
    """Yield the ratio of steps with their share of a checkpoint to steps without."""
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
    """Return a function that saves one checkpoint, including the work of its thread."""
    checkpoints, steps = Checkpoints(folder, World()), count()

    def save() -> None:
        fields = {"x": oracle.z0}
        checkpoints.save(
            Snapshot(next(steps), 0.0, {}), fields, oracle.synchronised_buffers, oracle.site
        )
        checkpoints.finish()

    return save
