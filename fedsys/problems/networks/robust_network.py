"""Robust training of a network against the worst common perturbation of its inputs.

Feihu Huang, Xinrui Wang, Junyi Li, Songcan Chen. Adaptive Federated Minimax Optimization with Lower
Complexities. AISTATS 2024. arXiv:2211.07303, eq. (14).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsys.core.errors import require
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.networks.classification import accuracy, cross_entropy
from fedsys.problems.networks.network_oracle import MinimaxNetworkOracle
from fedsys.problems.networks.trained_network import TrainedNetwork
from fedsys.problems.terms import NONE, Ball


@dataclass(frozen=True)
class RobustNetwork(TrainedNetwork):
    """min over w, max over ||nu|| <= radius of the cross-entropy of h(w; x + nu).

    Huang et al. (AISTATS 2024), arXiv:2211.07303, eq. (14). The same nu is added to every sample of
    every client. The paper prints "(h, y)^2", without a loss or a minus sign. The cross-entropy is
    used here, as by Deng and Mahdavi, from whom the paper takes the problem. The ball is the max
    player's constraint: `prox_y` projects onto it.

    Args:
        dataset: the data set.
        partition: the partition of the samples over the clients.
        model: the network, with one output per class; the paper uses three dense layers.
        batch_size: samples per draw, or None for all.
        radius: the radius of the ball; 1 in the paper.
    """

    radius: float = 1.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.radius > 0, "robust_network", "radius", self.radius, "positive")

    def oracle(self, site: Site) -> RobustNetworkOracle:
        """Return the oracle of the clients hosted at a site."""
        data = self.load(site)
        players = (self.network(data, data.classes, site), Perturbation(data.input_shape))
        clients, terms = self.client_data(data, site), (NONE, Ball(self.radius))
        given = site, _loss, players, clients, self.way
        return RobustNetworkOracle(*given, terms=terms, options=self.options)


class Perturbation(nn.Module):
    """inputs + nu, with the same nu for every sample; nu is initially 0."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.nu = nn.Parameter(torch.zeros(shape))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.nu


def _loss(x: nn.Module, y: Perturbation, inputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(x, y(inputs), labels)


class RobustNetworkOracle(MinimaxNetworkOracle):
    """An oracle that reports the accuracy on the test set, clean and perturbed.

    The metrics are train_loss, test_accuracy and test_accuracy_perturbed (by the averaged nu).
    """

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        net, perturb = (player.module for player in self._players)

        def both(inputs: Tensor) -> Tensor:
            return torch.stack([net(inputs), net(perturb(inputs))], dim=1)

        logits, labels = self.test_outputs(z, sync, both), self.test_labels(sync)
        metrics = super().evaluate(z, sync)
        if self.site.placement.rank == 0:
            clean, perturbed = (accuracy(part, labels) for part in logits.unbind(1))
            metrics |= {"test_accuracy": clean, "test_accuracy_perturbed": perturbed}
        return metrics
