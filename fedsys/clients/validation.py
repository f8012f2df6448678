"""A part of each client's training samples that is held out, to decide when to stop.

Axes: C hosted clients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsys.clients.batches import Batches
from fedsys.core.errors import InputError
from fedsys.core.random import generator


def hold_out(batches: Batches, share: float, seed: int) -> tuple[Batches, Batches]:
    """Return the batches without a share of each client's samples, and those samples.

    Each class is split by (seed, client). Both results read the samples where they are. A class of
    a client keeps at least one sample for training.
    """
    train, held = [], []
    for row, client in enumerate(batches.clients):
        own = batches.own(row)
        order = generator(seed, "validation", client).permutation(own.stop - own.start)
        shuffled = torch.from_numpy(order).to(batches.labels.device) + own.start
        labels, is_held = batches.labels[shuffled], torch.zeros_like(shuffled, dtype=torch.bool)
        for label in labels.unique():
            members = (labels == label).nonzero()[:, 0]
            count = min(int(share * len(members) + 0.5), len(members) - 1)
            is_held[members[:count]] = True
        if not is_held.any():
            raise InputError(
                f"problem.validation_share={share:g} holds out none of the {len(shuffled)} samples "
                f"of client {client}; use a larger share, or leave the client out"
            )
        train.append(shuffled[~is_held].sort().values)
        held.append(shuffled[is_held].sort().values)
    return batches.subset(train), batches.subset(held)


def class_counts_of(batches: Batches, classes: int) -> Tensor:
    """Return the number of samples of each class of the hosted clients, [C, classes]."""
    labels = [batches.labels[batches.own(row)].long() for row in range(len(batches.sizes))]
    return torch.stack([own.bincount(minlength=classes) for own in labels]).cpu()
