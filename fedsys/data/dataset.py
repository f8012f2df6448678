"""Data in memory: tensors, and what is done to them before they are given to clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedsys.errors import InputError, require
from fedsys.random import generator


@dataclass(frozen=True)
class Dataset:
    """A training and a test part; inputs [N, ...] and integer labels [N]."""

    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_inputs.shape[1:])


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
        positive: which half of the classes is positive, "second_half" or "first_half".
        limit: the most samples that either part keeps, both classes in proportion; None for all.
    """

    positive_ratio: float | None = 0.1
    positive: str = "second_half"
    limit: int | None = None

    def __post_init__(self) -> None:
        ratio = self.positive_ratio
        valid = ratio is None or 0 < ratio < 1
        require(valid, "imbalance", "positive_ratio", ratio, "in (0, 1) or null")
        valid = self.limit is None or self.limit >= 2
        require(valid, "imbalance", "limit", self.limit, "at least 2 or null")
        halves = ("first_half", "second_half")
        require(
            self.positive in halves, "imbalance", "positive", self.positive, " or ".join(halves)
        )

    def __call__(self, data: Dataset, seed: int) -> Dataset:
        """The binary task: labels 1 for positive, 0 for negative."""
        train, test = (
            self._is_positive(data, data.train_labels),
            self._is_positive(data, data.test_labels),
        )
        keep = np.arange(len(train))
        if self.positive_ratio is not None:
            keep = self._thin(train.numpy(), self.positive_ratio, seed)
        index = torch.from_numpy(self._limited(keep, train.numpy(), seed))
        binary = replace(
            data,
            train_inputs=data.train_inputs[index],
            train_labels=train[index].long(),
            test_labels=test.long(),
            classes=2,
        )
        if self.limit is None or len(test) <= self.limit:
            return binary
        tested = torch.from_numpy(self._limited(np.arange(len(test)), test.numpy(), seed))
        return replace(
            binary, test_inputs=data.test_inputs[tested], test_labels=test[tested].long()
        )

    def _limited(self, index: np.ndarray, positive: np.ndarray, seed: int) -> np.ndarray:
        """At most `limit` of the indices, with as many positives among them as before."""
        if self.limit is None or len(index) <= self.limit:
            return index
        order = generator(seed, "limit").permutation(index)
        share = self.limit / len(index)
        parts = (order[positive[order]], order[~positive[order]])
        kept = [part[: max(1, int(share * len(part)))] for part in parts]
        return np.sort(np.concatenate(kept))

    def _is_positive(self, data: Dataset, labels: Tensor) -> Tensor:
        upper = labels >= data.classes // 2
        return upper if self.positive == "second_half" else ~upper

    @staticmethod
    def _thin(positive: np.ndarray, ratio: float, seed: int) -> np.ndarray:
        positives, negatives = np.flatnonzero(positive), np.flatnonzero(~positive)
        wanted = int(ratio / (1 - ratio) * len(negatives))
        if not 1 <= wanted <= len(positives):
            raise InputError(
                f"imbalance: positive_ratio={ratio} asks for {wanted} positives, the data has "
                f"{len(positives)} (and {len(negatives)} negatives); choose another ratio"
            )
        kept = generator(seed, "thinning").permutation(positives)[:wanted]
        return np.sort(np.concatenate([negatives, kept]))
