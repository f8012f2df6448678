"""A local step of FGDA and of AdaFGDA against its two gradients in plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time
from typing import Any

import torch

from benchmarks import reference
from benchmarks.fgda import Noise, deep_auc
from benchmarks.local_step import BATCH, LR, local_steps
from benchmarks.measure import Ratio, interleave, lasting, repeat, warm_up
from fedsys.algorithms import FGDA, AdaFGDA
from fedsys.communication import AdaptiveMatrix
from fedsys.core.site import Site

LIMIT, SECONDS = 1.10, 25.0


def measure() -> Iterator[Ratio]:
    """Yield the ratio of each method, measured in this process."""
    torch.set_num_threads(1)
    oracle, data = deep_auc().oracle(Site()), Noise().load()
    points = _players(), _players()
    labels = data.train_labels.float()
    both = reference.two_gradients(points, data.train_inputs, labels, BATCH, p=0.5)
    theirs = repeat(both, 10, process_time)
    numbers: dict[str, Any] = {"lr_x": LR, "lr_y": LR, "eta": 1.0, "alpha": 0.1, "beta": 0.1}
    numbers["local_steps"] = 2  # FGDA draws one sample per local step for its initial estimate
    for algorithm in (FGDA(**numbers), AdaFGDA(**numbers)):
        steps = local_steps(algorithm, oracle, AdaptiveMatrix())
        ours = torch.no_grad()(repeat(steps, 10, process_time))
        warm_up(ours, theirs)
        times = interleave(ours, theirs, lasting(SECONDS, at_least=30))
        yield Ratio(f"{type(algorithm).__name__} step, 2 gradients", LIMIT, *times)


def _players() -> reference.AUCPlayers:
    return reference.AUCPlayers(reference.dense(784, 200, 200, 1))
