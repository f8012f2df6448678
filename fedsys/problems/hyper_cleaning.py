"""Hyper-cleaning: learn which training labels to trust (Shaban et al., AISTATS 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsys.communication import Sync
from fedsys.compat import torchmetrics
from fedsys.data import Dataset, Deal
from fedsys.data.partition import deal
from fedsys.errors import InputError, require
from fedsys.models import MLP, ModelSource
from fedsys.problems.network_problem import NetworkProblem
from fedsys.problems.reweighting import ReweightingOracle, SampleWeighting
from fedsys.problems.site import Site
from fedsys.problems.stacked import StackedBatches, stacked_model
from fedsys.random import generator


@dataclass(frozen=True)
class HyperCleaning(NetworkProblem):
    """A weight sigmoid(x_i) for each training sample, so that the model does well on clean ones.

    The labels of a share of the training samples are replaced by other classes; each client puts a
    share of its own aside, with their true labels, for the outer loss. x has an entry for every
    sample of all clients; a client moves those of its own, so that an average divides the step by
    the number of clients.

    Args:
        dataset: images or other samples with classes.
        partition: which client gets which.
        model: the classifier, with one output per class.
        batch_size: samples per draw, or None for all.
        noise: the share of training labels that are replaced.
        validation_share: of each client's samples.
        l2: the weight of |y|^2 / 2 in the training loss.
    """

    model: ModelSource = field(default_factory=lambda: MLP(hidden=[]))
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
        """The oracle of the clients hosted at a site."""
        data = self.dataset.load()
        truth = data.train_labels.numpy()
        dealt = deal(data, self.partition, site.placement.clients, site.seed)
        split = (self._split(part, client, site.seed) for client, part in enumerate(dealt.parts))
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
            dealt=dealt,
            cleaned=torch.from_numpy(np.concatenate(rest)),
            clean=torch.from_numpy(noisy == truth),
        )

    def _split(self, part: np.ndarray, client: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """One client's validation and training samples."""
        held = round(self.validation_share * len(part))
        if not 1 <= held < len(part):
            raise InputError(
                f"hyper_cleaning: client {client} has {len(part)} samples, too few to put "
                f"{self.validation_share:.0%} aside; use fewer clients or another partition"
            )
        order = generator(seed, "validation", client).permutation(part)
        return np.sort(order[:held]), np.sort(order[held:])

    def _noisy(self, labels: np.ndarray, classes: int, seed: int) -> np.ndarray:
        """The labels, a share of them moved to another class."""
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
    """Reports whether the weights tell wrong labels from right ones."""

    def __init__(
        self, *args: object, data: Dataset, dealt: Deal, cleaned: Tensor, clean: Tensor
    ) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.deal, site = dealt, self.site
        self._test_inputs = data.numbers(data.test_inputs, site.dtype, site.device)
        self._test_labels = data.test_labels.to(site.device)
        self._cleaned, self._clean = cleaned.to(site.device), clean.to(site.device)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """The samples' weights, and the classifier."""
        x, y = self.split(z)
        return {"sample_weights": x.sigmoid(), **self.model.named(y)}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """outer_loss, test_accuracy of the averaged model, and noise_auc of the weights."""
        x, y = self.split(z)
        metrics = super().evaluate(z, sync)
        if self.site.placement.rank == 0:
            scores, _ = self.model.scores(y[:1], self._test_inputs[None])
            right = scores[0].argmax(1) == self._test_labels
            metrics["test_accuracy"] = float(right.double().mean())
            weights, clean = x[0][self._cleaned].sigmoid(), self._clean[self._cleaned]
            metrics["noise_auc"] = float(torchmetrics().binary_auroc(weights.float(), clean.long()))
        return metrics
