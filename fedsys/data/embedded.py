"""Data sets that come with scikit-learn: nothing to download."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedsys.data.dataset import Dataset
from fedsys.errors import InputError, require
from fedsys.random import generator


@dataclass(frozen=True)
class Digits:
    """1,797 handwritten digits of 8x8 pixels, scaled to [0, 1], with a fixed stratified test part.

    Args:
        root: not used; the data is part of scikit-learn.
        test_share: the part of every class that is kept for testing.
    """

    root: str | None = None
    test_share: float = 0.25

    def __post_init__(self) -> None:
        require(0 < self.test_share < 1, "digits", "test_share", self.test_share, "in (0, 1)")

    def load(self) -> Dataset:
        """Read the file that scikit-learn installs."""
        table = np.loadtxt(_installed_file("digits.csv.gz"), delimiter=",", dtype=np.float32)
        inputs, labels = table[:, :-1] / 16.0, table[:, -1].astype(np.int64)
        train, test = _stratified_split(labels, self.test_share)
        return Dataset(
            train_inputs=torch.from_numpy(inputs[train]),
            train_labels=torch.from_numpy(labels[train]),
            test_inputs=torch.from_numpy(inputs[test]),
            test_labels=torch.from_numpy(labels[test]),
            classes=10,
        )


def _installed_file(name: str) -> Path:
    """A data file of scikit-learn, found without importing it: that would take over a second."""
    spec = importlib.util.find_spec("sklearn")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder) / "datasets" / "data" / name
        if path.is_file():
            return path
    raise InputError(f"scikit-learn's {name} is missing; reinstall scikit-learn")


def _stratified_split(labels: np.ndarray, test_share: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training and test part; the same for every run and seed."""
    order = generator(0, "test part").permutation(len(labels))
    test = np.concatenate(
        [
            members[: round(test_share * len(members))]
            for members in (order[labels[order] == label] for label in np.unique(labels))
        ]
    )
    return np.setdiff1d(order, test), np.sort(test)
