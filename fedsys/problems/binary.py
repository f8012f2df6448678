"""Two classes told apart by one score: what cross-entropy and AUC methods share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedsys.communication import Sync
from fedsys.compat import torchmetrics
from fedsys.data import Imbalance
from fedsys.errors import require
from fedsys.problems.mapping import Loss
from fedsys.problems.network import MinimisationNetworkOracle, NetworkOracle
from fedsys.problems.network_problem import NetworkProblem
from fedsys.problems.site import Site
from fedsys.problems.stacked import slopes


@dataclass(frozen=True)
class BinaryClassification(NetworkProblem):
    """min over w of the cross-entropy of a network with one output, judged by the AUC.

    The ratio loss weights a sample of class c by 1 + ratio_weight R_c (Wang et al., AAAI 2021).
    R_c is taken from the class counts, those of the other class over those of c, where the authors
    estimate it in every round from a balanced set that the server holds.

    Args:
        dataset: where the samples come from.
        partition: which client gets which.
        model: the network, with one output.
        batch_size: samples per draw, or None for all.
        imbalance: how the task is made binary and its positives rare.
        loss: "cross_entropy" or "ratio".
        ratio_weight: of the ratios in the ratio loss.
    """

    imbalance: Imbalance = field(default_factory=Imbalance)
    loss: str = "cross_entropy"
    ratio_weight: float = 0.1

    kinds: ClassVar[tuple[str, ...]] = ("minimisation", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = "binary_classification"
        known = self.loss in ("cross_entropy", "ratio")
        require(known, owner, "loss", self.loss, "cross_entropy or ratio")
        require(self.ratio_weight >= 0, owner, "ratio_weight", self.ratio_weight, "not negative")

    def oracle(self, site: Site) -> BinaryClassificationOracle:
        """The oracle of the clients hosted at a site."""
        data = self.imbalance(self.dataset.load(), site.seed)
        scorer = Scorer(self.network(data, 1, site))
        loss: Loss = cross_entropy
        if self.loss == "ratio":
            positives = float(data.train_labels.double().mean())
            odds = positives / (1 - positives)
            loss = _RatioLoss(1 + self.ratio_weight * odds, 1 + self.ratio_weight / odds)
        clients = self.client_data(data, site)
        return BinaryClassificationOracle(site, loss, (scorer,), clients, self.vectorize)


class Scorer(nn.Module):
    """A network with one output, the logit of its score."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def logits(self, inputs: Tensor) -> Tensor:
        """The network's one output."""
        logits: Tensor = self.net(inputs)[:, 0]
        return logits

    def forward(self, inputs: Tensor) -> Tensor:
        """The scores in (0, 1)."""
        return torch.sigmoid(self.logits(inputs))


class BinaryCrossEntropy:
    """Of a batch with labels 1 and 0."""

    def __call__(self, x: Scorer, inputs: Tensor, labels: Tensor) -> Tensor:
        """Of one client."""
        logits = x.logits(inputs)
        return binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))

    def slopes(self, scores: Tensor, labels: Tensor) -> tuple[Tensor]:
        """The derivative in the logits of all clients."""
        return (slopes(scores, labels).div_(labels.shape[1]),)


cross_entropy = BinaryCrossEntropy()


@dataclass(frozen=True)
class _RatioLoss:
    """Cross-entropy with a weight for each class."""

    negative: float
    positive: float

    def __call__(self, x: Scorer, inputs: Tensor, labels: Tensor) -> Tensor:
        logits = x.logits(inputs)
        positive = labels.to(logits.dtype)
        weights = self.negative + (self.positive - self.negative) * positive
        return binary_cross_entropy_with_logits(logits, positive, weights)

    def slopes(self, scores: Tensor, labels: Tensor) -> tuple[Tensor]:
        """The derivative in the logits of all clients."""
        weights = self.negative + (self.positive - self.negative) * labels.to(scores.dtype)
        return (slopes(scores, labels) * weights[:, :, None] / labels.shape[1],)


class BinaryClassificationOracle(MinimisationNetworkOracle):
    """Reports the area under the curve on the whole test part."""

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """train_loss and test_auc of the averaged model."""
        return {**super().evaluate(z, sync), **area_under_curve(self, z, sync)}


def area_under_curve(oracle: NetworkOracle, z: Tensor, sync: Sync) -> dict[str, float]:
    """test_auc of a `Scorer` on the whole test part; on the first rank only."""
    scorer = oracle.min_player
    assert isinstance(scorer, Scorer)
    logits = oracle.test_outputs(z, sync, scorer.logits)
    if oracle.site.placement.rank > 0:
        return {}
    return {"test_auc": auroc(logits, oracle.data.test_labels)}


def auroc(logits: Tensor, labels: Tensor) -> float:
    """The share of pairs of a positive and a negative that are in order; of ties, half."""
    # Numbers in [0, 1] with the order and the ties of the logits: a sigmoid would make all large
    # ones 1, and break ties, as its last bit depends on the place in a vector.
    order = logits.unique(return_inverse=True)[1]
    return float(torchmetrics().binary_auroc(order.double() / len(order), labels))
