"""Deep AUC maximisation as a min-max problem.

Feihu Huang, Xinrui Wang, Junyi Li, Songcan Chen. Adaptive Federated Minimax Optimization with Lower
Complexities. AISTATS 2024. arXiv:2211.07303, eq. (13).

Xinwen Zhang, Yihan Zhang, Tianbao Yang, Richard Souvenir, Hongchang Gao. Federated Compositional
Deep AUC Maximization. NeurIPS 2023. arXiv:2304.10101, eq. (1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedsys.clients.client_data import ClientData
from fedsys.clients.mapping import Loss
from fedsys.core.errors import InputError, require
from fedsys.core.site import Site
from fedsys.data import Imbalance
from fedsys.problems.networks.network_oracle import MinimaxNetworkOracle
from fedsys.problems.networks.score_evaluation import ScoredOracle
from fedsys.problems.networks.scored_problem import ScoredProblem
from fedsys.problems.networks.scorer import Scorer


@dataclass(frozen=True)
class DeepAUC(ScoredProblem):
    """min over (w, a, b), max over alpha of the square surrogate of 1 - AUC.

        F = (1-p)(h-a)^2 1+ + p(h-b)^2 1- + 2(1+alpha)(p h 1- - (1-p) h 1+) - p(1-p) alpha^2

    Huang et al. (AISTATS 2024), arXiv:2211.07303, eq. (13); Zhang et al. (NeurIPS 2023),
    arXiv:2304.10101, eq. (1). h is the network's score in (0, 1) and p the ratio of positives.

    Args:
        dataset: the data set.
        partition: the partition of the samples over the clients.
        model: the network, with one output.
        batch_size: samples per draw, or None for all.
        imbalance: how the labels are made binary and how many positives are kept.
        positive_ratio: the samples over which p is computed: "global" for those of all clients,
            from the sum of their class counts, or "client" for each client's own.
    """

    imbalance: Imbalance = field(default_factory=Imbalance)
    positive_ratio: str = "global"

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        ratios = ("global", "client")
        valid = self.positive_ratio in ratios
        require(valid, "auc", "positive_ratio", self.positive_ratio, " or ".join(ratios))

    def oracle(self, site: Site) -> DeepAUCOracle:
        """Return the oracle of the clients hosted at a site."""
        parts, evaluation = self._parts(site), self.score_evaluation
        return DeepAUCOracle(*parts, evaluation=evaluation, options=self.options)

    def _parts(
        self, site: Site
    ) -> tuple[Site, Sequence[Loss], tuple[nn.Module, nn.Module], ClientData, str]:
        """Return the arguments of the oracle."""
        data = self.imbalance(self.load(site), site.seed)
        players = (_Primal(self.network(data, 1, site)), _Dual())
        clients = self.client_data(data, site)
        losses = [_AUCLoss(ratio) for ratio in self._ratios(clients, site)]
        return site, losses, players, clients, self.way

    def _ratios(self, clients: ClientData, site: Site) -> list[float]:
        """Return p of every hosted client, from the numbers of negatives and positives.

        With `positive_share`, p is the share in every batch, which makes F the same surrogate.
        """
        counts = clients.counts
        if self.share is not None:
            return [self.share] * len(counts)
        if self.positive_ratio == "global":
            counts = clients.totals.expand_as(counts)
        elif (counts == 0).any():
            client = site.hosted[int((counts == 0).any(1).nonzero()[0])]
            raise InputError(
                f"auc: client {client} has samples of one class only, and no objective of its own; "
                "use positive_ratio=global or another partition"
            )
        ratios: list[float] = (counts[:, 1].double() / counts.sum(1)).tolist()
        return ratios


class _Primal(Scorer):
    """(w, a, b): the network and the two class means."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))


class _Dual(nn.Module):
    """The dual variable alpha."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(()))


@dataclass(frozen=True)
class _AUCLoss:
    """F of eq. (13), averaged over a batch with labels 1 and 0."""

    p: float

    def __call__(self, x: _Primal, y: _Dual, inputs: Tensor, labels: Tensor) -> Tensor:
        p, h = self.p, x(inputs)
        positive = labels.to(h.dtype)
        negative = 1 - positive
        loss: Tensor = (
            (1 - p) * (h - x.a).square() * positive
            + p * (h - x.b).square() * negative
            + 2 * (1 + y.alpha) * h * (p * negative - (1 - p) * positive)
        ).mean() - p * (1 - p) * y.alpha.square()
        return loss

    def slopes(
        self, scores: Tensor, labels: Tensor, means: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the derivatives in the logits, in (a, b) and in alpha, for all clients."""
        p, h = self.p, scores[:, :, 0].sigmoid()
        a, b = means.split(1, dim=1)
        positive = labels.to(h.dtype)
        negative = 1 - positive
        from_a, from_b = (1 - p) * (h - a) * positive, p * (h - b) * negative
        tilt = p * negative - (1 - p) * positive
        of_h = 2 * (from_a + from_b + (1 + alpha) * tilt) / labels.shape[1]
        of_means = -2 * torch.stack([from_a.mean(1), from_b.mean(1)], dim=1)
        of_alpha = 2 * ((h * tilt).mean(1, keepdim=True) - p * (1 - p) * alpha)
        return (of_h * h * (1 - h))[:, :, None], of_means, of_alpha


class DeepAUCOracle(ScoredOracle, MinimaxNetworkOracle):
    """An oracle that reports train_loss, and test_auc of the averaged model on the test set."""
