"""A network against the worst common perturbation of its inputs, adafgda.txt eq. (14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedsys.communication import Sync
from fedsys.errors import require
from fedsys.problems.classification import accuracy, cross_entropy
from fedsys.problems.network import MinimaxNetworkOracle
from fedsys.problems.network_problem import NetworkProblem
from fedsys.problems.site import Site
from fedsys.problems.terms import NONE, Ball


@dataclass(frozen=True)
class RobustNetwork(NetworkProblem):
    """min over w, max over ||nu|| <= radius of the cross-entropy of h(w; x + nu).

    One nu is added to every sample of every client. The paper prints "(h, y)^2", without a loss or
    a minus; like Deng and Mahdavi, from whom it has the problem, we take the cross-entropy. The
    ball is the max player's constraint: `prox_y` projects onto it.

    Args:
        dataset: where the samples come from.
        partition: which client gets which.
        model: the network, with one output per class; the paper has three dense layers.
        batch_size: samples per draw, or None for all.
        radius: of the ball; 1 in the paper.
    """

    radius: float = 1.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.radius > 0, "robust_network", "radius", self.radius, "positive")

    def oracle(self, site: Site) -> RobustNetworkOracle:
        """The oracle of the clients hosted at a site."""
        data = self.dataset.load()
        players = (self.network(data, data.classes, site), Perturbation(data.input_shape))
        clients, terms = self.client_data(data, site), (NONE, Ball(self.radius))
        return RobustNetworkOracle(site, _loss, players, clients, self.vectorize, terms=terms)


class Perturbation(nn.Module):
    """x + nu, from nu = 0 on."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.nu = nn.Parameter(torch.zeros(shape))

    def forward(self, inputs: Tensor) -> Tensor:
        """The same for every sample."""
        return inputs + self.nu


def _loss(x: nn.Module, y: Perturbation, inputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(x, y(inputs), labels)


class RobustNetworkOracle(MinimaxNetworkOracle):
    """Reports accuracy on the whole test part, as it is and perturbed."""

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """train_loss, test_accuracy and test_accuracy_perturbed (by the averaged nu)."""
        net, perturb = (player.module for player in self._players)

        def both(inputs: Tensor) -> Tensor:
            return torch.stack([net(inputs), net(perturb(inputs))], dim=1)

        logits = self.test_outputs(z, sync, both)
        metrics = super().evaluate(z, sync)
        if self.site.placement.rank == 0:
            clean, perturbed = (accuracy(part, self.data.test_labels) for part in logits.unbind(1))
            metrics |= {"test_accuracy": clean, "test_accuracy_perturbed": perturbed}
        return metrics
