"""Classification by cross-entropy, a minimisation problem.

It is the standard benchmark of federated minimisation and comes from no particular paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from typing_extensions import override

from fedsys.clients.small_models import slopes
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.networks.network_oracle import MinimisationNetworkOracle
from fedsys.problems.networks.trained_network import TrainedNetwork
from fedsys.system.compat import torchmetrics


@dataclass(frozen=True)
class Classification(TrainedNetwork):
    """min over w of the cross-entropy of a network.

    Args:
        dataset: the data set.
        partition: the partition of the samples over the clients.
        model: the network, with one output per class.
        batch_size: samples per draw, or None for all.
    """

    kinds: ClassVar[tuple[str, ...]] = ("minimisation", "variational")

    def oracle(self, site: Site) -> ClassificationOracle:
        """Return the oracle of the clients hosted at a site."""
        data = self.load(site)
        net = self.network(data, data.classes, site)
        clients = self.client_data(data, site)
        given = site, cross_entropy, (net,), clients, self.way
        return ClassificationOracle(*given, options=self.options)


class CrossEntropy:
    """The mean cross-entropy of a batch."""

    def __call__(self, x: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of one client."""
        return F.cross_entropy(x(inputs), labels)

    def slopes(self, scores: Tensor, labels: Tensor) -> tuple[Tensor]:
        """Return the derivative in the scores, for all clients."""
        return (slopes(scores, labels).div_(labels.shape[1]),)


cross_entropy = CrossEntropy()


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the fraction of samples whose class has the largest output."""
    classes = logits.shape[1]
    return float(torchmetrics().multiclass_accuracy(logits, labels, classes, average="micro"))


class ClassificationOracle(MinimisationNetworkOracle):
    """An oracle that reports train_loss, and test_accuracy of the averaged model."""

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        logits = self.test_outputs(z, sync, self._players[0].module)
        labels = self.test_labels(sync)
        metrics = super().evaluate(z, sync)
        if self.site.placement.rank == 0:
            metrics["test_accuracy"] = accuracy(logits, labels)
        return metrics
