"""Classification by cross-entropy: plain minimisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedsys.communication import Sync
from fedsys.compat import torchmetrics
from fedsys.data import IID, DatasetSource, Digits, Partition
from fedsys.models import MLP, ModelSource
from fedsys.problems.network import ClientData, MinimisationNetworkOracle
from fedsys.problems.oracle import Site
from fedsys.problems.seeded import seeded_build


@dataclass(frozen=True)
class Classification:
    """min over w of the cross-entropy of a network.

    Args:
        dataset: where the samples come from.
        partition: which client gets which.
        model: the network, with one output per class.
        batch_size: samples per draw, or None for all.
    """

    dataset: DatasetSource = field(default_factory=Digits)
    partition: Partition = field(default_factory=IID)
    model: ModelSource = field(default_factory=MLP)
    batch_size: int | None = 32

    kinds: ClassVar[tuple[str, ...]] = ("minimisation", "variational")

    def oracle(self, site: Site) -> ClassificationOracle:
        """The oracle of the clients hosted at a site."""
        data = self.dataset.load()
        net = seeded_build(lambda: self.model.build(data.input_shape, data.classes), site.seed)
        clients = ClientData.of(data, self.partition, self.batch_size, site)
        return ClassificationOracle(site, _cross_entropy, (net,), clients)


def _cross_entropy(x: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(x(inputs), labels)


class ClassificationOracle(MinimisationNetworkOracle):
    """Reports accuracy on the whole test part."""

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """train_loss and test_accuracy of the averaged model."""
        logits = self.test_outputs(z, sync, self._players[0].module)
        metrics = super().evaluate(z, sync)
        if self.site.placement.rank == 0:
            labels, classes = self.data.test_labels, logits.shape[1]
            accuracy = torchmetrics().multiclass_accuracy(logits, labels, classes, average="micro")
            metrics["test_accuracy"] = float(accuracy)
        return metrics
