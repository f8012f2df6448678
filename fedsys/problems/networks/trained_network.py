"""Options of the training of a network: augmentation, balanced batches, pieces, autocast, decay."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsys.clients.client_data import ClientData
from fedsys.clients.training_batches import (
    Augmentation,
    TrainingBatches,
    positives_of,
    transforms_of,
)
from fedsys.clients.validation import class_counts_of, hold_out
from fedsys.core.errors import InputError, require
from fedsys.core.site import Site
from fedsys.data import Dataset
from fedsys.problems.networks.network_problem import NetworkProblem
from fedsys.problems.networks.training_options import TrainingOptions


@dataclass(frozen=True)
class TrainedNetwork(NetworkProblem):
    """A network that is trained by gradients of a mean loss.

    Args:
        dataset: the data set.
        partition: the partition of the samples over the clients.
        model: the network.
        batch_size: samples per draw, or None for all.
        augment: a transform of torchvision.transforms.v2, or a list of them, applied to every
            sample of a training batch; None for no augmentation.
        micro_batch: the samples of a backward pass, whose gradients add up to that of the batch;
            None for the whole batch.
        autocast: "bf16" to compute the network's training passes in bfloat16 where that is safe.
        weight_decay: the factor of half the squared norm of the network's parameters, which is
            part of the loss.
        validation_share: the share of each client's training samples, of each class, that is held
            out for `validation_loss` and `validation_auc`; 0 for none.
    """

    augment: Any = field(default=None, kw_only=True)
    micro_batch: int | None = field(default=None, kw_only=True)
    autocast: str | None = field(default=None, kw_only=True)
    weight_decay: float = field(default=0.0, kw_only=True)
    validation_share: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        owner, size = type(self).__name__, self.micro_batch
        transforms_of(self.augment)
        valid = size is None or size >= 1
        require(valid, owner, "micro_batch", size, "at least 1, or null for the whole batch")
        require(self.autocast in (None, "bf16"), owner, "autocast", self.autocast, "bf16 or null")
        require(self.weight_decay >= 0, owner, "weight_decay", self.weight_decay, "not negative")
        share, rule = self.validation_share, "0 (none) or more, and below 1"
        require(0 <= share < 1, owner, "validation_share", share, rule)
        one_by_one = self.micro_batch is not None or self.autocast is not None
        rule = "auto or loop with micro_batch or autocast"
        valid = self.vectorize != "vmap" or not one_by_one
        require(valid, owner, "vectorize", self.vectorize, rule)
        for name in ("micro_batch", "weight_decay"):
            value = getattr(self, name)
            rule = "left out: it has second derivatives, which do not cover the option"
            require(not self.differentiates_twice or not value, owner, name, value, rule)

    @property
    def way(self) -> str:
        """How clients are computed; pieces of batches and autocast need one after another."""
        return "loop" if self.micro_batch or self.autocast else self.vectorize

    @property
    def share(self) -> float | None:
        """The share of positives in every batch; None for that of the data."""
        return None

    @property
    def options(self) -> TrainingOptions:
        """What the oracle needs to know."""
        return TrainingOptions(self.micro_batch, self.weight_decay, self.share)

    @override
    def network(self, data: Dataset, outputs: int, site: Site) -> nn.Module:
        net = super().network(data, outputs, site)
        if self.autocast is not None:
            if site.dtype != torch.float32:
                given = str(site.dtype).removeprefix("torch.")
                raise InputError(f"problem.autocast=bf16 needs dtype=float32, got {given}")
            _autocast(net, site.device.type)
        return net

    @override
    def client_data(self, data: Dataset, site: Site) -> ClientData:
        clients, transforms = super().client_data(data, site), transforms_of(self.augment)
        if self.validation_share > 0:
            clients = self._without_validation(clients, site)
        if not transforms and self.share is None:
            return clients
        augmentation = Augmentation(transforms, site.seed) if transforms else None
        positives = None if self.share is None else positives_of(self.share, self.batch_size)
        batches = TrainingBatches(clients.batches, site.seed, augmentation, positives)
        return replace(clients, batches=batches)

    def _without_validation(self, clients: ClientData, site: Site) -> ClientData:
        """Hold out the validation samples; classes are counted without them."""
        batches, held = hold_out(clients.batches, self.validation_share, site.seed)
        counts = class_counts_of(batches, len(clients.totals))
        totals = site.peers.total(counts.sum(0)).long()
        return replace(clients, batches=batches, validation=held, counts=counts, totals=totals)


@dataclass(frozen=True)
class BinaryNetwork(TrainedNetwork):
    """A network with one output, trained on labels 1 and 0.

    Args:
        dataset: the data set.
        partition: the partition of the samples over the clients.
        model: the network, with one output.
        batch_size: samples per draw, or None for all.
        positive_share: the share of positives in every batch, for which the rare class is drawn
            more often; None for that of the data.
    """

    positive_share: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.positive_share
        if given is not None:
            rule = "between 0 and 1, or null for that of the data"
            require(0 < given < 1, type(self).__name__, "positive_share", given, rule)
            positives_of(given, self.batch_size)

    @property
    @override
    def share(self) -> float | None:
        given, size = self.positive_share, self.batch_size
        return None if given is None or size is None else positives_of(given, size) / size


def _autocast(net: nn.Module, device_type: str) -> None:
    """Compute the training passes of a network in bfloat16, but not its evaluation."""
    forward = net.forward

    def cast(inputs: Tensor) -> Tensor:
        if not net.training:
            return forward(inputs)  # type: ignore[no-any-return]
        with torch.autocast(device_type, torch.bfloat16):
            outputs: Tensor = forward(inputs)
        return outputs.to(inputs.dtype)

    net.forward = cast
