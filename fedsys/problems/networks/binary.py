"""Binary classification by a single score, evaluated by the AUC.

These are the baselines of Xinwen Zhang, Yihan Zhang, Tianbao Yang, Richard Souvenir, Hongchang Gao.
Federated Compositional Deep AUC Maximization. NeurIPS 2023. arXiv:2304.10101, Table 1. The ratio
loss is by Lixu Wang, Shichao Xu, Xiao Wang, Qi Zhu. Addressing Class Imbalance in Federated
Learning. AAAI 2021. arXiv:2008.06217.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fedsys.clients.mapping import Loss
from fedsys.clients.small_models import slopes
from fedsys.core.errors import require
from fedsys.core.site import Site
from fedsys.data import Imbalance
from fedsys.problems.networks.network_oracle import MinimisationNetworkOracle
from fedsys.problems.networks.score_evaluation import ScoredOracle
from fedsys.problems.networks.scored_problem import ScoredProblem
from fedsys.problems.networks.scorer import Scorer


@dataclass(frozen=True)
class BinaryClassification(ScoredProblem):
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
        evaluation = self.score_evaluation
        return BinaryClassificationOracle(*given, evaluation=evaluation, options=self.options)


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


class BinaryClassificationOracle(ScoredOracle, MinimisationNetworkOracle):
    """An oracle that reports train_loss, and test_auc of the averaged model on the test set."""
