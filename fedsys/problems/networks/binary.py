"""Binary classification by a single score, evaluated by the AUC.

These are the baselines of Xinwen Zhang, Yihan Zhang, Tianbao Yang, Richard Souvenir, Hongchang Gao.
Federated Compositional Deep AUC Maximization. NeurIPS 2023. arXiv:2304.10101, Table 1. The ratio
loss is by Lixu Wang, Shichao Xu, Xiao Wang, Qi Zhu. Addressing Class Imbalance in Federated
Learning. AAAI 2021. arXiv:2008.06217.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from fedsys.clients.mapping import Loss
from fedsys.clients.small_models import slopes
from fedsys.core.errors import require
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.data import Imbalance
from fedsys.problems.networks.network_oracle import MinimisationNetworkOracle, NetworkOracle
from fedsys.problems.networks.trained_network import BinaryNetwork
from fedsys.system.compat import torchmetrics


@dataclass(frozen=True)
class BinaryClassification(BinaryNetwork):
    """min over w of the cross-entropy of a network with one output, evaluated by the AUC.

    A baseline of Zhang et al. (NeurIPS 2023), arXiv:2304.10101, Table 1. The ratio loss of Wang et
    al. (AAAI 2021), arXiv:2008.06217, weights a sample of class c by 1 + ratio_weight R_c. Here R_c
    is exact: the number of samples of the other class divided by that of class c. The authors
    estimate it in every round, see `MonitoredRatioLoss`.

    Args:
        dataset: the data set.
        partition: the partition of the samples over the clients.
        model: the network, with one output.
        batch_size: samples per draw, or None for all.
        imbalance: how the labels are made binary and how many positives are kept.
        loss: "cross_entropy" or "ratio".
        ratio_weight: the factor of R_c in the ratio loss.
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
        """Return the oracle of the clients hosted at a site."""
        data = self.imbalance(self.load(site), site.seed)
        scorer = Scorer(self.network(data, 1, site))
        clients = self.client_data(data, site)
        loss: Loss = cross_entropy
        if self.loss == "ratio":
            shares = clients.totals.double() / clients.totals.sum()
            odds = float(shares[1]) / (1 - float(shares[1]))
            loss = RatioLoss(1 + self.ratio_weight * odds, 1 + self.ratio_weight / odds)
        given = site, loss, (scorer,), clients, self.way
        return BinaryClassificationOracle(*given, options=self.options)


class Scorer(nn.Module):
    """A network with one output, the logit of its score in (0, 1)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the network's only output."""
        logits: Tensor = self.net(inputs)[:, 0]
        return logits

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.sigmoid(self.logits(inputs))


class BinaryCrossEntropy:
    """The mean cross-entropy of a batch with labels 1 and 0."""

    def __call__(self, x: Scorer, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of one client."""
        logits = x.logits(inputs)
        return binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))

    def slopes(self, scores: Tensor, labels: Tensor) -> tuple[Tensor]:
        """Return the derivative in the logits, for all clients."""
        return (slopes(scores, labels).div_(labels.shape[1]),)


cross_entropy = BinaryCrossEntropy()


@dataclass
class RatioLoss:
    """The cross-entropy with a weight for each class."""

    negative: float
    positive: float

    def __call__(self, x: Scorer, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of one client."""
        logits = x.logits(inputs)
        positive = labels.to(logits.dtype)
        weights = self.negative + (self.positive - self.negative) * positive
        return binary_cross_entropy_with_logits(logits, positive, weights)

    def slopes(self, scores: Tensor, labels: Tensor) -> tuple[Tensor]:
        """Return the derivative in the logits, for all clients."""
        weights = self.negative + (self.positive - self.negative) * labels.to(scores.dtype)
        return (slopes(scores, labels) * weights[:, :, None] / labels.shape[1],)


class BinaryClassificationOracle(MinimisationNetworkOracle):
    """An oracle that reports train_loss, and test_auc of the averaged model on the test set."""

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        return {**super().evaluate(z, sync), **area_under_curve(self, z, sync)}


def area_under_curve(oracle: NetworkOracle, z: Tensor, sync: Sync) -> dict[str, float]:
    """Return test_auc of a `Scorer` on the whole test set; only the first rank has it."""
    scorer = oracle.min_player
    assert isinstance(scorer, Scorer)
    logits, labels = oracle.test_outputs(z, sync, scorer.logits), oracle.test_labels(sync)
    if oracle.site.placement.rank > 0:
        return {}
    if (line := _equal_scores(logits)) is not None:
        oracle.warnings.setdefault("scores", line)
    return {"test_auc": auroc(logits, labels)}


_SMALLEST_SPREAD = 1e-4
"""The smallest standard deviation of scores in (0, 1) without a warning.

AUC losses are minimal if the scores of the two classes differ by 1.
"""


def _equal_scores(logits: Tensor) -> str | None:
    """Return a warning if the scores hardly differ: the sigmoid or the network is saturated."""
    spread = float(logits.double().sigmoid().std(correction=0))
    most = int(logits.unique(return_counts=True)[1].max())
    if len(logits) < 2 or (spread >= _SMALLEST_SPREAD and 2 * most <= len(logits)):
        return None
    return (
        f"the scores of the {len(logits)} test samples hardly differ (standard deviation "
        f"{spread:.2g}, {most} are equal), so test_auc is unreliable and gradients vanish; try "
        "smaller step sizes"
    )


def auroc(logits: Tensor, labels: Tensor) -> float:
    """Return the fraction of pairs of a positive and a negative in order; a tie counts half."""
    # Ranks in [0, 1] have the order and the ties of the logits. A sigmoid would map all large
    # logits to 1, and break ties, because its last bit depends on the position in a vector.
    order = logits.unique(return_inverse=True)[1]
    return float(torchmetrics().binary_auroc(order.double() / len(order), labels))
