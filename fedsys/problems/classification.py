"""Classification by cross-entropy: plain minimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedsys.communication import Sync
from fedsys.compat import torchmetrics
from fedsys.problems.network import MinimisationNetworkOracle
from fedsys.problems.network_problem import NetworkProblem
from fedsys.problems.site import Site
from fedsys.problems.stacked import slopes


@dataclass(frozen=True)
class Classification(NetworkProblem):
    """min over w of the cross-entropy of a network.

    Args:
        dataset: where the samples come from.
        partition: which client gets which.
        model: the network, with one output per class.
        batch_size: samples per draw, or None for all.
    """

    kinds: ClassVar[tuple[str, ...]] = ("minimisation", "variational")

    def oracle(self, site: Site) -> ClassificationOracle:
        """The oracle of the clients hosted at a site."""
        data = self.dataset.load()
        net = self.network(data, data.classes, site)
        clients = self.client_data(data, site)
        return ClassificationOracle(site, cross_entropy, (net,), clients, self.vectorize)


class CrossEntropy:
    """The mean over a batch."""

    def __call__(self, x: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """Of one client."""
        return F.cross_entropy(x(inputs), labels)

    def slopes(self, scores: Tensor, labels: Tensor) -> tuple[Tensor]:
        """The derivative in the scores of all clients."""
        return (slopes(scores, labels).div_(labels.shape[1]),)


cross_entropy = CrossEntropy()


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of samples whose class has the largest output."""
    classes = logits.shape[1]
    return float(torchmetrics().multiclass_accuracy(logits, labels, classes, average="micro"))


class ClassificationOracle(MinimisationNetworkOracle):
    """Reports accuracy on the whole test part."""

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """train_loss and test_accuracy of the averaged model."""
        logits = self.test_outputs(z, sync, self._players[0].module)
        metrics = super().evaluate(z, sync)
        if self.site.placement.rank == 0:
            metrics["test_accuracy"] = accuracy(logits, self.data.test_labels)
        return metrics
