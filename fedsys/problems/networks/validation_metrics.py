"""The metrics of the samples that clients hold out from training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedsys.clients.batches import Batches
from fedsys.clients.client_data import ClientData
from fedsys.core.sync import Sync
from fedsys.problems.networks.score_metrics import auroc
from fedsys.problems.networks.test_part import pooled
from fedsys.problems.networks.training_options import BatchLoss


def held_out_metrics(
    data: ClientData,
    load: Callable[[int], None],
    loss_of: Callable[[int], BatchLoss],
    network: nn.Module,
    sync: Sync,
) -> dict[str, float]:
    """Return validation_loss, the mean over the clients, and validation_auc of pooled scores.

    A network with `logits`, a scorer of a binary task, has the AUC if there are samples of both
    classes, and if the data was partitioned: clients that own their data keep their scores.

    Args:
        data: the hosted clients' data, which may hold out no samples.
        load: makes the network that of a hosted client.
        loss_of: returns the loss of a hosted client.
        network: in evaluation mode.
        sync: connects the clients.
    """
    if (held := data.validation) is None:
        return {}
    losses, scores = [], []
    for row in range(len(held.sizes)):
        load(row)
        loss, logits = _outputs(loss_of(row), network, held, row)
        losses.append(loss)
        scores += logits
    metrics = {"validation_loss": float(sync(torch.stack(losses)[:, None])[0])}
    if not scores or data.test_sizes is not None:  # scores stay with clients that own their data
        return metrics
    return {**metrics, **_area_under_curve(scores, held, sync)}


def _outputs(
    loss: BatchLoss, network: nn.Module, held: Batches, row: int
) -> tuple[Tensor, list[Tensor]]:
    """Return the mean loss of a client's samples, and the logits [n] if the network scores."""
    logits = getattr(network, "logits", None)
    losses, scores = [], []
    for inputs, labels in held.pieces(row):
        losses.append(loss(inputs, labels) * (len(labels) / held.sizes[row]))
        if logits is not None:
            scores.append(logits(inputs))
    return torch.stack(losses).sum(), [torch.cat(scores)] if scores else []


def _area_under_curve(scores: Sequence[Tensor], held: Batches, sync: Sync) -> dict[str, float]:
    labels = [held.labels[held.own(row)].to(scores[0]) for row in range(len(held.sizes))]
    logits, targets = pooled(scores, sync), pooled(labels, sync).long()
    if not 0 < int(targets.sum()) < len(targets):
        return {}
    return {"validation_auc": auroc(logits, targets)}
