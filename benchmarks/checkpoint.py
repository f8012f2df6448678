"""What a checkpoint every 50 steps adds to a step of ResNet20, by the processor's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import torch
from torch import Tensor

from benchmarks.local_step import BATCH, CASES, LR, local_steps, make_oracle
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
    case = next(case for case in CASES if case.name == "ResNet20")
    inputs = torch.randn(4 * BATCH, *case.input_shape)
    oracle = make_oracle(case, inputs, torch.randint(2, (len(inputs),)).float())
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
    fields: dict[str, Tensor] = FedAvg(lr=LR).init(oracle, None).tensors()  # type: ignore[arg-type]

    def save() -> None:
        checkpoints.save(Snapshot(next(steps), 0.0, {}), fields, oracle.rider, oracle.site)
        checkpoints.finish()

    return save
