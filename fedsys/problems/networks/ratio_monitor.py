"""The ratio loss with class weights that a monitor estimates.

Lixu Wang, Shichao Xu, Xiao Wang, Qi Zhu. Addressing Class Imbalance in Federated Learning. AAAI
2021. arXiv:2008.06217. The rule is that of the authors' code
(github.com/balanced-fl/Addressing-Class-Imbalance-FL).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.clients.flat_module import flattened
from fedsys.core.errors import InputError, require
from fedsys.core.metrics import Record
from fedsys.core.oracles import Draw
from fedsys.core.random import generator, global_generators
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.data import Dataset
from fedsys.problems.networks.binary import (
    BinaryClassification,
    BinaryClassificationOracle,
    RatioLoss,
    cross_entropy,
)
from fedsys.problems.networks.scorer import Scorer

_SINGLE_CLASS = 0.8
"""An entry belongs to the class that raises it most, if no other class changes it by more than this
fraction of that increase."""
_UNKNOWN, _LARGEST = 10.0, 5000.0
"""The ratio of a class without entries, and the largest ratio."""


@dataclass(frozen=True)
class MonitoredRatioLoss(BinaryClassification):
    """`BinaryClassification` with the ratio loss, whose class weights a monitor estimates.

    Wang et al. (AAAI 2021), arXiv:2008.06217. The server has the same number of auxiliary samples
    of each class, which are copies of training samples. The algorithm trains the network on each
    class separately (`class_weights`) and compares the changes of the last layer; it never sees the
    clients' class counts. The network has one output z, interpreted as the two outputs -z and z.

    Args:
        dataset: the data set.
        partition: the partition of the samples over the clients.
        model: the network, with one output; its last layer is dense.
        batch_size: samples per draw, or None for all.
        imbalance: how the labels are made binary and how many positives are kept.
        ratio_weight: the factor of the ratios in the class weights.
        auxiliary: the largest number of samples of each class at the server; the authors use 63.
    """

    loss: str = "ratio"
    auxiliary: int = 63

    kinds: ClassVar[tuple[str, ...]] = ("monitored",)

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = "ratio_loss_monitor"
        require(self.loss == "ratio", owner, "loss", self.loss, "ratio")
        require(self.auxiliary >= 1, owner, "auxiliary", self.auxiliary, "at least 1")

    @override
    def oracle(self, site: Site) -> MonitoredRatioOracle:
        if site.kind not in (None, "monitored"):
            raise InputError(
                "ratio_loss_monitor estimates class weights in every round, as only "
                "algorithm=localsgdm_rl_monitor does; use problem=ratio_loss, whose weights come "
                "from the class counts"
            )
        self.refuse_owned("the server has auxiliary samples of each class")
        data = self.imbalance(self.load(site), site.seed)
        scorer = Scorer(self.network(data, 1, site))
        return MonitoredRatioOracle(
            site,
            RatioLoss(1.0, 1.0),
            (scorer,),
            self.client_data(data, site),
            self.way,
            options=self.options,
            auxiliary=self._auxiliary_samples(data, site),
            ratio_weight=self.ratio_weight,
            evaluation=self.score_evaluation,
        )

    def _auxiliary_samples(self, data: Dataset, site: Site) -> list[Tensor]:
        """Return the same number of training samples of each class, by class."""
        order = generator(site.seed, "auxiliary").permutation(len(data.train_labels))
        labels = data.train_labels.numpy()[order]
        members = [order[labels == label] for label in (0, 1)]
        size = min(self.auxiliary, *map(len, members))
        require(size >= 1, "ratio_loss_monitor", "samples of a class", size, "at least 1")
        chosen = [torch.from_numpy(np.sort(m[:size])) for m in members]
        return [data.numbers(data.train_inputs[i], site.dtype, site.device) for i in chosen]


class MonitoredRatioOracle(BinaryClassificationOracle):
    """Gradients for given class weights, and the server's estimate of the weights.

    It reports train_loss, the cross-entropy without weights, and test_auc of the averaged model.
    """

    def __init__(
        self, *args: Any, auxiliary: list[Tensor], ratio_weight: float, **others: Any
    ) -> None:
        super().__init__(*args, **others)
        self._auxiliary, self._ratio_weight = auxiliary, ratio_weight
        self._weighted: RatioLoss = args[1]
        player = self._players[0]
        places = np.cumsum([0, *player.sizes])
        heads = [i for i, s in enumerate(player.shapes) if len(s) == 2 and s[0] == 1]
        if not heads:
            raise InputError(
                "ratio_loss_monitor compares changes of the last layer: the network must end with "
                "a dense layer with one output"
            )
        self._head = slice(int(places[heads[-1]]), int(places[heads[-1] + 1]))

    def class_grad(self, x: Tensor, alpha: Tensor, xi: Draw) -> Tensor:
        """Return the gradient with weight alpha[0, c] on samples of class c."""
        self._weighted.negative, self._weighted.positive = alpha[0].tolist()
        return self.grad(x, xi)

    def class_weights(self, x: Tensor, lr: float, momentum: float, steps: int) -> Tensor:
        """Return 1 + ratio_weight R_c of each class c [2], after training from x [d] on each."""
        moved = torch.stack([self._trained(x, q, lr, momentum, steps) - x for q in (0, 1)])
        head = moved[:, self._head]
        ratios = monitor_ratios(torch.stack([-head, head], dim=1))
        return 1 + self._ratio_weight * ratios

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> Record:
        self._weighted.negative = self._weighted.positive = 1.0
        return super().evaluate(z, sync)

    def _trained(self, x: Tensor, label: int, lr: float, momentum: float, steps: int) -> Tensor:
        """Return x after `steps` heavy-ball steps on all auxiliary samples of one class."""
        inputs, player = self._auxiliary[label], self._players[0]
        labels = torch.full((len(inputs),), label, device=inputs.device)
        u = torch.zeros_like(x)
        key = int(generator(self.site.seed, "monitor", label, self.step).integers(2**62))
        with global_generators(key, self.site.device):
            for _ in range(steps):
                player.load(x)
                with torch.enable_grad():
                    loss = cross_entropy(self._scorer(), inputs, labels)
                gradients = torch.autograd.grad(loss, player.parameters, materialize_grads=True)
                u = momentum * u + torch.cat([flattened(g) for g in gradients])
                x = x - lr * u
        return x

    def _scorer(self) -> Scorer:
        scorer = self.min_player
        assert isinstance(scorer, Scorer)
        return scorer


def monitor_ratios(changes: Tensor) -> Tensor:
    """Return R_c of each class [Q], from the changes [Q, ...] of a layer in training on each class.

    An entry belongs to the class that raises it most, if no other class changes it by more than 0.8
    of that. R_c is the sum over the entries of c of the change by class c, divided by the sum of
    the mean change by the other classes.
    """
    changes = changes.flatten(1)
    peak, owner = changes.max(0)
    single = (changes.abs() > _SINGLE_CLASS * peak.abs()).sum(0) < 2
    ratios = []
    for c in range(len(changes)):
        own = changes[:, single & (owner == c)].sum(1)
        others = (own.sum() - own[c]) / (len(changes) - 1)
        ratios.append(own[c].abs() / others.abs() if others != 0 else own.new_tensor(_UNKNOWN))
    return torch.stack(ratios).clamp(max=_LARGEST)
