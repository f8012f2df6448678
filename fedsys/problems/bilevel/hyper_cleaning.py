"""Hyper-cleaning: learn which training labels to trust.

Amirreza Shaban, Ching-An Cheng, Nathan Hatch, Byron Boots. Truncated Back-propagation for Bilevel
Optimization. AISTATS 2019. arXiv:1810.10667.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.clients.small_models import StackedBatches, stacked_model
from fedsys.core.errors import InputError, require
from fedsys.core.random import generator
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.data import ClientSplit, Dataset
from fedsys.data.partition import split_clients
from fedsys.problems.bilevel.autograd import shared_row
from fedsys.problems.bilevel.reweighting import ReweightingOracle, SampleWeighting
from fedsys.problems.networks.network_problem import NetworkProblem
from fedsys.system.compat import torchmetrics


@dataclass(frozen=True)
class HyperCleaning(NetworkProblem):
    """Learn a weight sigmoid(x_i) of each training sample that minimises the loss on clean ones.

    Shaban et al. (AISTATS 2019), arXiv:1810.10667. The labels of a fraction of the training samples
    are replaced by other classes. Each client holds out a fraction of its samples, with their true
    labels, for the outer loss. x has an entry for every sample of all clients. A client changes
    only the entries of its own samples, so averaging divides the step by the number of clients.

    Args:
        dataset: images or other samples with classes.
        partition: the partition of the samples over the clients.
        model: the classifier, with one output per class.
        batch_size: samples per draw, or None for all.
        noise: the fraction of training labels that are replaced.
        validation_share: the fraction of each client's samples that is held out.
        l2: the weight of |y|^2 / 2 in the training loss.
    """

    batch_size: int | None = 64
    noise: float = 0.4
    validation_share: float = 0.2
    l2: float = 1e-3

    kinds: ClassVar[tuple[str, ...]] = ("bilevel",)
    differentiates_twice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        owner, share = "hyper_cleaning", self.validation_share
        require(0 <= self.noise < 1, owner, "noise", self.noise, "in [0, 1)")
        require(0 < share < 1, owner, "validation_share", share, "in (0, 1)")
        require(self.l2 >= 0, owner, "l2", self.l2, "at least 0")

    def oracle(self, site: Site) -> HyperCleaningOracle:
        """Return the oracle of the clients hosted at a site."""
        self.refuse_owned("it replaces labels, whose weights it shares between clients")
        data = self.load(site)
        truth = data.train_labels.numpy()
        client_split = split_clients(data, self.partition, site.placement.clients, site.seed)
        split = (
            self._split(part, client, site.seed) for client, part in enumerate(client_split.parts)
        )
        held, rest = zip(*split, strict=True)
        noisy = self._noisy(truth, data.classes, site.seed)
        return HyperCleaningOracle(
            site,
            stacked_model(self.network(data, data.classes, site), site, self.vectorize),
            SampleWeighting(),
            torch.zeros(len(truth)),
            self._batches(data, noisy, rest, site),
            self._batches(data, truth, held, site),
            self.l2,
            data=data,
            client_split=client_split,
            cleaned=torch.from_numpy(np.concatenate(rest)),
            clean=torch.from_numpy(noisy == truth),
        )

    def _split(self, part: np.ndarray, client: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the validation and the training samples of one client."""
        held = round(self.validation_share * len(part))
        if not 1 <= held < len(part):
            raise InputError(
                f"hyper_cleaning: client {client} has {len(part)} samples, too few to hold out "
                f"{self.validation_share:.0%}; use fewer clients or another partition"
            )
        order = generator(seed, "validation", client).permutation(part)
        return np.sort(order[:held]), np.sort(order[held:])

    def _noisy(self, labels: np.ndarray, classes: int, seed: int) -> np.ndarray:
        """Return the labels, a fraction of which is replaced by another class."""
        stream = generator(seed, "label noise")
        wrong = stream.permutation(len(labels))[: round(self.noise * len(labels))]
        noisy = labels.copy()
        noisy[wrong] = (labels[wrong] + stream.integers(1, classes, len(wrong))) % classes
        return noisy

    def _batches(
        self, data: Dataset, labels: np.ndarray, parts: tuple[np.ndarray, ...], site: Site
    ) -> StackedBatches:
        mine = [torch.from_numpy(parts[client]) for client in site.hosted]
        given = torch.from_numpy(labels)
        inputs = [data.numbers(data.train_inputs[i], site.dtype, site.device) for i in mine]
        return StackedBatches(site, inputs, [given[i] for i in mine], mine, self.batch_size)


class HyperCleaningOracle(ReweightingOracle):
    """The oracle of hyper-cleaning.

    It reports outer_loss, test_accuracy (the mean over the clients' models) and noise_auc, the AUC
    of the weights as a score of whether a label is right.
    """

    def __init__(
        self,
        *args: object,
        data: Dataset,
        client_split: ClientSplit,
        cleaned: Tensor,
        clean: Tensor,
    ) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.client_split, site = client_split, self.site
        self._test_inputs = data.numbers(data.test_inputs, site.dtype, site.device)
        self._test_labels = data.test_labels.to(site.device)
        self._cleaned, self._clean = cleaned.to(site.device), clean.to(site.device)

    @override
    def named(self, z: Tensor) -> dict[str, Tensor]:
        x, y = self.split(z)
        return {"sample_weights": shared_row(x).sigmoid(), **self.model.named(y)}

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        x, y = self.split(z)
        metrics = super().evaluate(z, sync)
        metrics["test_accuracy"] = float(sync(self._test_accuracies(y))[0])
        if self.site.placement.rank == 0:
            weights, clean = x[0][self._cleaned].sigmoid(), self._clean[self._cleaned]
            metrics["noise_auc"] = float(torchmetrics().binary_auroc(weights.float(), clean.long()))
        return metrics

    def _test_accuracies(self, y: Tensor) -> Tensor:
        """Return the test accuracy of each hosted client's model: [C, 1]."""
        found: list[Tensor] = []
        for row, model in enumerate(y):
            if row and torch.equal(model, y[row - 1]):  # all clients have the same model
                found.append(found[-1])
                continue
            scores, _ = self.model.scores(model[None], self._test_inputs[None])
            found.append((scores[0].argmax(1) == self._test_labels).double().mean())
        return torch.stack(found)[:, None]
