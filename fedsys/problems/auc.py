"""Deep AUC maximisation as a min-max problem, adafgda.txt eq. (13)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedsys.communication import Sync
from fedsys.data import IID, DatasetSource, Digits, Imbalance, Partition
from fedsys.models import MLP, ModelSource
from fedsys.problems.binary import Scorer, area_under_curve
from fedsys.problems.network import ClientData, Loss, MinimaxNetworkOracle
from fedsys.problems.oracle import Site
from fedsys.problems.seeded import seeded_build


@dataclass(frozen=True)
class DeepAUC:
    """min over (w, a, b), max over alpha of the square surrogate of 1 - AUC.

        F = (1-p)(h-a)^2 1+ + p(h-b)^2 1- + 2(1+alpha)(p h 1- - (1-p) h 1+) - p(1-p) alpha^2

    h is the network's score in (0, 1) and p the share of positives among all clients' samples.

    Args:
        dataset: where the samples come from.
        partition: which client gets which.
        model: the network, with one output.
        imbalance: how the task is made binary and its positives rare.
        batch_size: samples per draw, or None for all.
    """

    dataset: DatasetSource = field(default_factory=Digits)
    partition: Partition = field(default_factory=IID)
    model: ModelSource = field(default_factory=MLP)
    imbalance: Imbalance = field(default_factory=Imbalance)
    batch_size: int | None = 32

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def oracle(self, site: Site) -> DeepAUCOracle:
        """The oracle of the clients hosted at a site."""
        return DeepAUCOracle(*self._parts(site))

    def _parts(self, site: Site) -> tuple[Site, Loss, tuple[nn.Module, nn.Module], ClientData]:
        """What the oracle is made of."""
        data = self.imbalance(self.dataset.load(), site.seed)
        prior = float(data.train_labels.double().mean())
        net = seeded_build(lambda: self.model.build(data.input_shape, outputs=1), site.seed)
        players = (_Primal(net), _Dual())
        clients = ClientData.of(data, self.partition, self.batch_size, site)
        return site, _AUCLoss(prior), players, clients


class _Primal(Scorer):
    """(w, a, b): the network and the two class means."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))


class _Dual(nn.Module):
    """alpha."""

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


class DeepAUCOracle(MinimaxNetworkOracle):
    """Reports the area under the curve on the whole test part."""

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """train_loss and test_auc of the averaged model."""
        return {**super().evaluate(z, sync), **area_under_curve(self, z, sync)}
