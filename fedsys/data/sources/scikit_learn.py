"""Data sets that come with scikit-learn: nothing to download."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fedsys.core.errors import InputError, require
from fedsys.core.random import generator
from fedsys.data.dataset import Dataset
from fedsys.data.formats import reading
from fedsys.data.sources.base import Source


@dataclass(frozen=True, kw_only=True)
class EmbeddedSource(Source):
    """A table of scikit-learn, with a fixed stratified test part; `root` is not used.

    Args:
        test_share: the part of every class that is kept for testing.
    """

    test_share: float = 0.25

    file: ClassVar[str]
    header: ClassVar[int] = 0
    """Lines before the first row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.test_share < 1, self.name, "test_share", self.test_share, "in (0, 1)")

    def read(self) -> Dataset:
        """Read the file that scikit-learn installs."""
        path = _installed_file(self.file)
        with reading(path):
            table = np.loadtxt(path, delimiter=",", dtype=np.float32, skiprows=self.header)
        labels = table[:, -1].astype(np.int64)
        train, test = stratified_split(labels, self.test_share)
        inputs = self.scaled(table[:, :-1], train)
        return Dataset(
            train_inputs=torch.from_numpy(inputs[train]),
            train_labels=torch.from_numpy(labels[train]),
            test_inputs=torch.from_numpy(inputs[test]),
            test_labels=torch.from_numpy(labels[test]),
            classes=int(labels.max()) + 1,
            name=self.name,
        )

    @abstractmethod
    def scaled(self, inputs: np.ndarray, train: np.ndarray) -> np.ndarray:
        """Return all inputs, scaled by statistics of the training part."""


@dataclass(frozen=True, kw_only=True)
class Digits(EmbeddedSource):
    """1,797 handwritten digits of 8x8 pixels, scaled to [0, 1]."""

    name: ClassVar[str] = "digits"
    file: ClassVar[str] = "digits.csv.gz"

    def scaled(self, inputs: np.ndarray, train: np.ndarray) -> np.ndarray:
        """From 0..16 to [0, 1]."""
        return inputs / 16.0


@dataclass(frozen=True, kw_only=True)
class BreastCancer(EmbeddedSource):
    """569 tumours, 30 standardised features; benign (357) is class 1, malignant (212) class 0."""

    name: ClassVar[str] = "breast_cancer"
    file: ClassVar[str] = "breast_cancer.csv"
    header: ClassVar[int] = 1

    def scaled(self, inputs: np.ndarray, train: np.ndarray) -> np.ndarray:
        """Each feature with mean 0 and variance 1 in the training part."""
        known = inputs[train].astype(np.float64)
        scaled: np.ndarray = ((inputs - known.mean(0)) / known.std(0)).astype(np.float32)
        return scaled


def _installed_file(name: str) -> Path:
    """A data file of scikit-learn, found without importing it: that would take over a second."""
    spec = importlib.util.find_spec("sklearn")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder) / "datasets" / "data" / name
        if path.is_file():
            return path
    raise InputError(f"scikit-learn's {name} is missing; reinstall scikit-learn")


def stratified_split(labels: np.ndarray, test_share: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training and test part; the same for every run and seed."""
    order = generator(0, "test part").permutation(len(labels))
    test = np.concatenate(
        [
            members[: round(test_share * len(members))]
            for members in (order[labels[order] == label] for label in np.unique(labels))
        ]
    )
    return np.setdiff1d(order, test), np.sort(test)
