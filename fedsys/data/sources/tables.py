"""Tables with sensitive groups: Adult and German Credit, prepared as by Diana et al. (2021).

Li et al. (2022), arXiv:2205.01608, refer to their code: github.com/amazon-research/minimax-fair.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsys.core.errors import InputError, require
from fedsys.core.random import generator
from fedsys.data.checks import check_integers
from fedsys.data.dataset import Dataset
from fedsys.data.formats import labels_in, numbers_in, read_text
from fedsys.data.sources.base import FileSource

_Frame = dict[str, list[str]]


@dataclass(frozen=True, kw_only=True)
class GroupedDataset(Dataset):
    """A binary task whose samples belong to groups [N]; `description` says how it was made."""

    train_groups: Tensor
    test_groups: Tensor
    group_names: tuple[str, ...]
    description: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_tags("group", self.test_groups, self.test_labels)
        for part, groups in (("training", self.train_groups), ("test", self.test_groups)):
            where = f"{self.name}: the {part} part"
            check_integers(where, "group", groups, len(self.group_names))

    def _taken(self, train: Tensor, test: Tensor) -> dict[str, Any]:
        return {**super()._taken(train, test), "test_groups": self.test_groups[test]}


@dataclass(frozen=True, kw_only=True)
class _Table(FileSource):
    """A file of the UCI repository: a column for each attribute, one of which is the group.

    Args:
        test_share: the part of every group that is kept for testing.
        scaling: "magnitude" divides a column by the power of ten of its largest value (Diana et
            al.), "standard" by its deviation after centring it; both from the training part.
        preparation: "authors" is what the driver of Diana et al. makes: the group is not among the
            features, and of Adult an index that is off by one turns capital-gain into categories;
            "plain" has capital-gain as a number; "with_group" is "plain" with the group among the
            features, which their function makes unless it is told to drop it.
    """

    test_share: float = 0.3
    scaling: str = "magnitude"
    preparation: str = "authors"

    columns: ClassVar[tuple[str, ...]]
    group: ClassVar[str]
    label: ClassVar[str]
    outcomes: ClassVar[tuple[str, str]]
    """The labels in the file, the positive one last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.test_share < 1, self.name, "test_share", self.test_share, "in (0, 1)")
        known = {
            "scaling": ("magnitude", "standard"),
            "preparation": ("authors", "plain", "with_group"),
        }
        for name, values in known.items():
            value = getattr(self, name)
            require(value in values, self.name, name, value, f"one of {', '.join(values)}")

    def read(self) -> GroupedDataset:
        """Read, encode, split and scale."""
        path = self.path()
        frame = self._frame(path)
        labels = labels_in(path, self.label, self._plain(frame[self.label]), self.outcomes)
        present = np.unique(labels)
        if len(present) < 2:
            raise InputError(
                f"{self.name}: the column {self.label} of {path} has one class only "
                f"({present[0]}, in all {len(labels)} rows); a classifier needs two"
            )
        names, groups = np.unique(frame[self.group], return_inverse=True)
        features = self._features(frame, path)
        if self.preparation != "with_group":
            features = {n: v for n, v in features.items() if n.split("=")[0] != self.group}
        inputs = np.stack(list(features.values()), axis=1)
        train, test = split_by_group(groups, self.test_share, self.seed)
        shift, scale = _scaling(inputs[train], self.scaling)
        inputs = ((inputs - shift) / scale).astype(np.float32)
        parts = {"train": train, "test": test}
        description = {
            "table": self.name,
            "rows": len(labels),
            "positives": int(labels.sum()),
            "group_column": self.group,
            "groups": {
                str(name): {
                    part: {"rows": int(mine.sum()), "positives": int(labels[rows][mine].sum())}
                    for part, rows in parts.items()
                    for mine in [groups[rows] == index]
                }
                for index, name in enumerate(names)
            },
            "test_share": self.test_share,
            "seed": self.seed,
            "scaling": self.scaling,
            "preparation": self.preparation,
            "features": {
                name: {"shift": float(a), "scale": float(b)}
                for name, a, b in zip(features, shift, scale, strict=True)
            },
        }
        inputs_, labels_, groups_ = (torch.from_numpy(a) for a in (inputs, labels, groups))
        return GroupedDataset(
            *(inputs_[train], labels_[train], inputs_[test], labels_[test]),
            classes=2,
            train_groups=groups_[train],
            test_groups=groups_[test],
            group_names=tuple(map(str, names)),
            description=description,
            name=self.name,
        )

    def _plain(self, column: list[str]) -> list[str]:
        """The labels, spelt as in `outcomes`."""
        return column

    @abstractmethod
    def _features(self, frame: _Frame, path: Path) -> dict[str, np.ndarray]:
        """The columns of the inputs, by name."""

    def _frame(self, path: Path) -> _Frame:
        lines = [line for line in read_text(path).splitlines() if line.strip()]
        rows = [line.replace(",", " ").split() for line in lines]
        width = len(self.columns)
        for number, row in enumerate(rows, start=1):
            if len(row) != width:
                raise InputError(
                    f"{self.name}: row {number} of {path} has {len(row)} fields, not {width}; "
                    "is it the original file?"
                )
        if not rows:
            raise InputError(f"{self.name}: {path} has no rows; is it the original file?")
        return dict(zip(self.columns, map(list, zip(*rows, strict=True)), strict=True))


@dataclass(frozen=True, kw_only=True)
class Adult(_Table):
    """Adult (Becker and Kohavi, 1996): income above 50K; 5 groups by race, 220 features.

    The training file of the UCI repository only, 32,561 rows; a missing value is a category of its
    own. Numbers, sex as one column, one column per value of the other attributes, among them the
    119 values of capital-gain (preparation "authors"); 102 features with capital-gain as a number
    ("plain"), 107 with the group as well ("with_group").
    """

    name = "adult"
    top = "adult"
    file = "adult.data"
    md5 = "5d7c39d7b8804f071cdd1f2a7c460872"
    address = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/adult.data"
    columns = (
        "age", "workclass", "fnlwgt", "education", "education-num", "marital-status",
        "occupation", "relationship", "race", "sex", "capital-gain", "capital-loss",
        "hours-per-week", "native-country", "income",
    )  # fmt: skip
    group = "race"
    label = "income"
    outcomes = ("<=50K", ">50K")
    _numbers: ClassVar[tuple[str, ...]] = (
        "age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week",
    )  # fmt: skip

    def _plain(self, column: list[str]) -> list[str]:
        return [value.removesuffix(".") for value in column]  # adult.test has full stops

    def _features(self, frame: _Frame, path: Path) -> dict[str, np.ndarray]:
        as_categories = ("capital-gain",) if self.preparation == "authors" else ()
        numbers = [name for name in self._numbers if name not in as_categories]
        checked = {name: numbers_in(path, name, frame[name]) for name in self._numbers}
        features = {name: checked[name] for name in numbers}
        for name in self.columns[:-1]:
            if name in numbers:
                continue
            values, codes = np.unique(frame[name], return_inverse=True)
            for code in range(len(values) == 2, len(values)):
                features[f"{name}={values[code]}"] = (codes == code).astype(float)
        return features


@dataclass(frozen=True, kw_only=True)
class German(_Table):
    """German Credit (Hofmann, 1994): bad risk; 4 groups by sex and marital status, 19 features.

    20 with the group among them (preparation "with_group"); "plain" is the same as "authors". Every
    code is replaced by its last digit, as Diana et al. do: A410 and A40 become the same.
    """

    name = "german"
    top = "german"
    file = "german.data"
    md5 = "6b94c2e35480e671545e52a808a8a549"
    address = "https://archive.ics.uci.edu/ml/machine-learning-databases/statlog/german/german.data"
    columns = (
        "checking", "duration", "history", "purpose", "amount", "savings", "employment", "rate",
        "sex-and-status", "debtors", "residence", "property", "age", "plans", "housing",
        "credits", "job", "dependants", "telephone", "foreign", "risk",
    )  # fmt: skip
    group = "sex-and-status"
    label = "risk"
    outcomes = ("1", "2")

    def _features(self, frame: _Frame, path: Path) -> dict[str, np.ndarray]:
        return {
            name: numbers_in(path, name, [v[-1] if v.startswith("A") else v for v in frame[name]])
            for name in self.columns[:-1]
        }


def split_by_group(
    groups: np.ndarray, test_share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of a training and a test part with the same share of every group."""
    order = generator(seed, "test part").permutation(len(groups))
    members = [order[groups[order] == group] for group in np.unique(groups)]
    test = np.concatenate([m[: round(test_share * len(m))] for m in members])
    return np.setdiff1d(order, test), np.sort(test)


def _scaling(inputs: np.ndarray, scaling: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset and the divisor of each column; a column of zeros is unchanged."""
    if scaling == "standard":
        shift, scale = inputs.mean(0), inputs.std(0)
    else:
        largest = np.abs(inputs).max(0)
        shift = np.zeros(inputs.shape[1])
        scale = 10.0 ** np.floor(np.log10(np.where(largest > 0, largest, 1.0)))
    return shift, np.where(scale > 0, scale, 1.0)
