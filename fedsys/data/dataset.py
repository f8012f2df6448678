"""Data in memory: tensors, and what is done to them before they are given to clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from fedsys.errors import InputError, require
from fedsys.random import generator


@dataclass(frozen=True)
class Scaling:
    """Pixels 0..255 to (pixel / 255 - mean) / std, with a mean and a std for each channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def on(self, dtype: torch.dtype, device: torch.device) -> Callable[[Tensor], Tensor]:
        """The map from images [B, channels, height, width] in bytes to numbers of this type."""
        mean, std = (
            torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        factor, offset = 1 / (255 * std), -mean / std
        return lambda pixels: torch.addcmul(offset, pixels.to(dtype), factor)


@dataclass(frozen=True)
class Dataset:
    """A training and a test part; inputs [N, ...] and integer labels [N].

    Inputs in bytes are images, which stay bytes until they are in a batch.

    Attributes:
        classes: how many labels there are.
        scaling: of inputs in bytes.
        train_classes: the classes before the task was made binary, if it was: partitions go by it.
        train_groups: a group attribute of the training samples, if the data has one.
        note: what the user should know about the data, in one line.
    """

    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    classes: int
    scaling: Scaling = Scaling()
    train_classes: Tensor | None = None
    train_groups: Tensor | None = None
    note: str = ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def original_classes(self) -> Tensor:
        """The class of each training sample, as the data set has it."""
        return self.train_labels if self.train_classes is None else self.train_classes

    def take(self, train: Tensor, test: Tensor) -> Self:
        """These samples of the two parts."""
        classes, groups = self.train_classes, self.train_groups
        return replace(
            self,
            train_inputs=self.train_inputs[train],
            train_labels=self.train_labels[train],
            test_inputs=self.test_inputs[test],
            test_labels=self.test_labels[test],
            train_classes=None if classes is None else classes[train],
            train_groups=None if groups is None else groups[train],
        )

    def numbers(self, inputs: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Inputs as numbers of this type; images in bytes are scaled."""
        if inputs.dtype == torch.uint8:
            return self.scaling.on(dtype, device)(inputs.to(device))
        return inputs.to(dtype=dtype, device=device)


class DatasetSource(Protocol):
    """What a configuration of the group `dataset` builds."""

    def load(self) -> Dataset:
        """Read the data."""


@dataclass(frozen=True)
class Imbalance:
    """Make a task binary and its positives rare, in the training part only.

    Keeps all negatives and the first int(p / (1 - p) * negatives) positives of a seeded
    permutation, so that positives make up `positive_ratio` of the training part. The test part
    stays as balanced as it is.

    Args:
        positive_ratio: p, or None to keep all.
        positive: the classes that are positive: "second_half" (as in the code that localscgdam.txt
            follows; its text says the first), "first_half", or a list of them.
        negative: a list of the classes that are negative, or None for all others; what is neither
            is left out of both parts.
    """

    positive_ratio: float | None = 0.1
    positive: str | Sequence[int] = "second_half"
    negative: Sequence[int] | None = None

    def __post_init__(self) -> None:
        ratio = self.positive_ratio
        valid = ratio is None or 0 < ratio < 1
        require(valid, "imbalance", "positive_ratio", ratio, "in (0, 1) or null")
        if isinstance(self.positive, str):
            halves = ("first_half", "second_half")
            rule = "first_half, second_half or a list of classes"
            require(self.positive in halves, "imbalance", "positive", self.positive, rule)

    def __call__(self, data: Dataset, seed: int) -> Dataset:
        """The binary task: labels 1 for positive, 0 for negative."""
        positive, negative = self._sides(data.classes)
        train, test = (
            torch.isin(labels, torch.cat([positive, negative])).nonzero()[:, 0]
            for labels in (data.train_labels, data.test_labels)
        )
        if self.positive_ratio is not None:
            is_positive = torch.isin(data.train_labels[train], positive).numpy()
            train = train[torch.from_numpy(self._thin(is_positive, self.positive_ratio, seed))]
        kept = data.take(train, test)
        return replace(
            kept,
            train_classes=kept.original_classes,
            train_labels=torch.isin(kept.train_labels, positive).long(),
            test_labels=torch.isin(kept.test_labels, positive).long(),
            classes=2,
        )

    def _sides(self, classes: int) -> tuple[Tensor, Tensor]:
        """The positive classes and the negative ones."""
        every = range(classes)
        half = classes // 2
        if isinstance(self.positive, str):
            second = self.positive == "second_half"
            positive = list(every[half:] if second else every[:half])
        else:
            positive = list(self.positive)
        others = [c for c in every if c not in positive]
        negative = others if self.negative is None else list(self.negative)
        for name, side in (("positive", positive), ("negative", negative)):
            rule = f"some of the classes 0 to {classes - 1}"
            require(bool(side) and set(side) <= set(every), "imbalance", name, side, rule)
        both = sorted({*positive} & {*negative})
        require(not both, "imbalance", "negative", negative, f"apart from positive={positive}")
        return torch.tensor(positive), torch.tensor(negative)

    @staticmethod
    def _thin(positive: np.ndarray, ratio: float, seed: int) -> np.ndarray:
        positives, negatives = np.flatnonzero(positive), np.flatnonzero(~positive)
        wanted = int(ratio / (1 - ratio) * len(negatives))
        if not 1 <= wanted <= len(positives):
            raise InputError(
                f"imbalance: positive_ratio={ratio} asks for {wanted} positives, the data has "
                f"{len(positives)} (and {len(negatives)} negatives); choose another ratio, or null "
                "to keep all"
            )
        kept = generator(seed, "thinning").permutation(positives)[:wanted]
        return np.sort(np.concatenate([negatives, kept]))
