"""A local step of FGDA (two gradients of one sample) against a local step of Local SGDA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import process_time

import torch

from benchmarks.local_step import BATCH, LR, SAMPLES, local_steps
from benchmarks.measure import Ratio, interleave, lasting, repeat, warm_up
from fedsys.algorithms import FGDA, LocalSGDA
from fedsys.core.site import Site
from fedsys.data import Dataset, Imbalance
from fedsys.models import MLP
from fedsys.problems import DeepAUC

LIMIT = 2.1


@dataclass(frozen=True)
class Noise:
    """Random inputs of the size of MNIST with two classes."""

    def load(self) -> Dataset:
        """Draw the samples."""
        torch.manual_seed(0)
        inputs, labels = torch.randn(SAMPLES, 784), torch.arange(SAMPLES) % 2
        return Dataset(inputs, labels, inputs[:2], labels[:2], classes=2)


def deep_auc() -> DeepAUC:
    """Return deep AUC with an MLP 784-200-200-1 on all samples, half of them positive."""
    everything = Imbalance(positive_ratio=None)
    return DeepAUC(Noise(), model=MLP((200, 200)), imbalance=everything, batch_size=BATCH)


def measure(seconds: float = 25.0) -> Iterator[Ratio]:
    """Yield the ratio on deep AUC maximisation, measured in this process."""
    torch.set_num_threads(1)
    oracle = deep_auc().oracle(Site())
    # FGDA draws one sample per local step for its initial estimate, so local_steps is small here;
    # no measured step communicates.
    fgda = FGDA(lr_x=LR, lr_y=LR, eta=1.0, alpha=0.1, beta=0.1, local_steps=2)
    plain = LocalSGDA(lr_x=LR, lr_y=LR)
    ours, theirs = (
        torch.no_grad()(repeat(local_steps(algorithm, oracle), 10, process_time))
        for algorithm in (fgda, plain)
    )
    warm_up(ours, theirs)
    times = interleave(ours, theirs, lasting(seconds, at_least=30))
    yield Ratio("fgda step, MLP 784-200-200-1", LIMIT, *times)
