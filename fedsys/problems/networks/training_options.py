"""What options of the training change in an oracle: pieces of batches, weight decay, shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsys.clients.flat_module import FlatModule
from fedsys.core.errors import InputError

BatchLoss = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of a client as a function of inputs and labels."""


@dataclass(frozen=True)
class TrainingOptions:
    """The options of the training that an oracle applies.

    Attributes:
        micro_batch: the samples of a backward pass; None for the whole batch.
        weight_decay: the factor of half the squared norm of the network's parameters in the loss.
        positive_share: the share of positives in every batch; None for that of the data.
    """

    micro_batch: int | None = None
    weight_decay: float = 0.0
    positive_share: float | None = None


DEFAULT = TrainingOptions()


def refuse_pieces(options: TrainingOptions, has_statistics: bool) -> None:
    """Refuse to compute batches in pieces if a network has statistics of whole batches."""
    if options.micro_batch is not None and has_statistics:
        raise InputError(
            "problem.micro_batch is not possible with BatchNorm, whose statistics are those of a "
            "whole batch; use GroupNorm, or micro_batch=null"
        )


def gradients_in_pieces(
    loss: BatchLoss, parameters: Sequence[Tensor], inputs: Tensor, labels: Tensor, size: int
) -> tuple[Tensor, ...]:
    """Return the gradients of the mean loss of a batch from pieces, weighted by their sizes."""
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for own, targets in zip(inputs.split(size), labels.split(size), strict=True):
        with torch.enable_grad():
            value = loss(own, targets)
        gradients = torch.autograd.grad(value, parameters, materialize_grads=True)
        for mean, gradient in zip(total, gradients, strict=True):
            mean.add_(gradient, alpha=len(targets) / len(labels))
    return tuple(total)


def balanced_loss(loss: BatchLoss, pieces: Iterable[tuple[Tensor, Tensor]], share: float) -> Tensor:
    """Return the mean losses of the two classes, of which positives have this share."""
    sums: tuple[list[Tensor], list[Tensor]] = ([], [])
    counts = [0, 0]
    for inputs, labels in pieces:
        for label in (0, 1):
            own = labels == label
            if count := int(own.sum()):
                sums[label].append(loss(inputs[own], labels[own]) * count)
                counts[label] += count
    negative, positive = (torch.stack(s).sum() / n for s, n in zip(sums, counts, strict=True))
    return (1 - share) * negative + share * positive


def decay_row(player: FlatModule, factor: float) -> Tensor | None:
    """Return the weight decay [d] of a player's entries, None for none.

    It is 0 for entries beside the network, such as the class means of an AUC loss.
    """
    if factor == 0:
        return None
    has_others = any(name.startswith("net.") for name in player.names)
    parts = [
        player.vector.new_full((size,), 0 if has_others and not name.startswith("net.") else factor)
        for name, size in zip(player.names, player.sizes, strict=True)
    ]
    return torch.cat(parts)


def regularised(losses: Tensor, x: Tensor, decay: Tensor | None) -> Tensor:
    """Return the losses [C] at x [C, d] with the weight decay."""
    return losses if decay is None else losses + (decay * x.square()).sum(1) / 2
