"""Data sets in memory, and their transformations before they are partitioned over clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from fedsys.core.errors import InputError, require
from fedsys.core.fields import Checked
from fedsys.core.random import generator
from fedsys.data.checks import check_part, check_range


@dataclass(frozen=True)
class Scaling:
    """Map pixels 0..255 to (pixel / 255 - mean) / std, with one mean and std per channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def on(self, dtype: torch.dtype, device: torch.device) -> Callable[[Tensor], Tensor]:
        """Return the map from uint8 images [B, channels, height, width] to tensors of `dtype`."""
        mean, std = (
            torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        factor, offset = 1 / (255 * std), -mean / std
        return lambda pixels: torch.addcmul(offset, pixels.to(dtype), factor)


@dataclass(frozen=True)
class Dataset:
    """A training and a test part: inputs [N, ...] and integer labels [N].

    Inputs of dtype uint8 are images; they are stored as bytes and scaled batch by batch.

    Every data set is validated when it is built: finite inputs, integer labels in range, equal
    lengths and shapes (fedsys/data/checks.py). Labels are stored as int64.

    Attributes:
        classes: the number of classes.
        scaling: the scaling of uint8 inputs.
        train_classes: the original classes of the training samples if the task was made binary;
            partitions use them.
        train_groups: a group attribute of the training samples, if the data set has one.
        note: remarks for the user, one per line.
        name: the name of the data set in errors.
        rows: the rows of the original training part that are left, if some were left out.
        row_classes: the class of every original row, if some were left out.
        train_owners: the client of each training sample, in order, if clients own their data. The
            data set then has the samples of the clients hosted here only.
        test_owners: the client of each test sample, if clients own their test parts as well.
        preparation: how inputs were made of files, as JSON, for predictions.
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
    name: str = "dataset"
    rows: Tensor | None = None
    row_classes: Tensor | None = None
    train_owners: Tensor | None = None
    test_owners: Tensor | None = None
    preparation: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        train, test = (f"{self.name}: the {part} part" for part in ("training", "test"))
        check_part(train, self.train_inputs, self.train_labels, self.classes)
        check_part(test, self.test_inputs, self.test_labels, self.classes)
        if self.train_inputs.shape[1:] != self.test_inputs.shape[1:]:
            shapes = [list(inputs.shape[1:]) for inputs in (self.train_inputs, self.test_inputs)]
            raise InputError(
                f"{self.name}: inputs of both parts must have one shape, got {shapes[0]} in the "
                f"training and {shapes[1]} in the test part"
            )
        for what, tags in (("class", self.train_classes), ("group", self.train_groups)):
            if tags is not None:
                self._check_tags(what, tags, self.train_labels)
        for part in ("train_labels", "test_labels"):
            object.__setattr__(self, part, getattr(self, part).long())

    def _check_tags(self, what: str, tags: Tensor, labels: Tensor) -> None:
        """Check that each sample has one integer tag: an original class, or a group."""
        if tags.dim() != 1 or len(tags) != len(labels):
            raise InputError(
                f"{self.name}: there must be one {what} for each of {len(labels)} samples, got "
                f"{list(tags.shape)}"
            )
        if tags.is_floating_point() or tags.is_complex():
            raise InputError(
                f"{self.name}: the {what} of a sample must be an integer, got {tags.dtype}"
            )

    def require_fits(self, dtype: torch.dtype) -> None:
        """Refuse inputs that overflow in the dtype of a run."""
        check_range(f"{self.name}: the training part", self.train_inputs, dtype)
        check_range(f"{self.name}: the test part", self.test_inputs, dtype)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def original_classes(self) -> Tensor:
        """The class of each training sample before the task was made binary."""
        return self.train_labels if self.train_classes is None else self.train_classes

    def take(self, train: Tensor, test: Tensor) -> Self:
        """Return a data set of the training samples `train` and the test samples `test`."""
        return replace(self, **self._taken(train, test))

    def _taken(self, train: Tensor, test: Tensor) -> dict[str, Any]:
        """Return the fields that `take` replaces."""
        rows = {"train": train, "test": test}
        inputs = (f"{part}_{name}" for part in rows for name in ("inputs", "labels"))
        tags = ("train_classes", "train_groups", "train_owners", "test_owners")
        values = {name: getattr(self, name) for name in (*inputs, *tags)}
        return {
            name: None if value is None else value[rows[name.split("_")[0]]]
            for name, value in values.items()
        }

    def numbers(self, inputs: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return inputs in `dtype` on `device`; uint8 images are scaled."""
        if inputs.dtype == torch.uint8:
            return self.scaling.on(dtype, device)(inputs.to(device))
        return inputs.to(dtype=dtype, device=device)


class DatasetSource(Protocol):
    """A source of a data set, which a configuration of the group `dataset` builds."""

    def load(self) -> Dataset:
        """Read and return the data set."""


@dataclass(frozen=True)
class Imbalance(Checked):
    """Make a task binary and, optionally, its positives rare in the training part.

    With a `positive_ratio` p, keep all negatives and the first int(p / (1 - p) * negatives)
    positives of a seeded permutation, so that positives make up a fraction p of the training part.
    The balance of the test part does not change. `Dataset.note` says what was left out.

    Args:
        positive_ratio: p, or None to keep all samples. conf/problem/auc.yaml and
            binary_classification.yaml set 0.1, as the papers do.
        positive: the classes that are positive: "second_half" (as in the code that Zhang et al.
            (NeurIPS 2023), arXiv:2304.10101, follow; their text says the first), "first_half", or
            a list of them.
        negative: a list of the classes that are negative, or None for all others. Samples of all
            other classes are left out of both parts.
    """

    positive_ratio: float | None = None
    positive: str | Sequence[int] = "second_half"
    negative: Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        ratio = self.positive_ratio
        valid = ratio is None or 0 < ratio < 1
        require(valid, "imbalance", "positive_ratio", ratio, "in (0, 1) or null")
        if isinstance(self.positive, str):
            halves = ("first_half", "second_half")
            rule = "first_half, second_half or a list of classes"
            require(self.positive in halves, "imbalance", "positive", self.positive, rule)

    def __call__(self, data: Dataset, seed: int) -> Dataset:
        """Return the binary task: labels 1 for positive, 0 for negative samples."""
        positive, negative = self._sides(data.classes)
        train, test = (
            torch.isin(labels, torch.cat([positive, negative])).nonzero()[:, 0]
            for labels in (data.train_labels, data.test_labels)
        )
        if self.positive_ratio is not None:
            is_positive = torch.isin(data.train_labels[train], positive).numpy()
            owners = None if data.train_owners is None else data.train_owners[train].numpy()
            kept_rows = self._thinned(is_positive, owners, self.positive_ratio, seed)
            train = train[torch.from_numpy(kept_rows)]
        kept = data.take(train, test)
        task = replace(
            kept,
            train_classes=kept.original_classes,
            train_labels=torch.isin(kept.train_labels, positive).long(),
            test_labels=torch.isin(kept.test_labels, positive).long(),
            classes=2,
        )
        left_out = len(train) < len(data.train_labels) or len(test) < len(data.test_labels)
        return self._with_note(task, data, positive, train) if left_out else task

    def _with_note(self, task: Dataset, data: Dataset, positive: Tensor, train: Tensor) -> Dataset:
        """Return the task with a note on what was left out, and with the rows that are left."""
        there = torch.isin(data.train_labels, positive)
        negatives, positives = task.train_labels.bincount(minlength=2).tolist()
        asked = "null" if self.positive_ratio is None else f"{self.positive_ratio:g}"
        note = (
            f"imbalance: trains on {positives} of {int(there.sum())} positive and {negatives} of "
            f"{int((~there).sum())} negative samples (positive_ratio={asked})"
        )
        if len(task.test_labels) < len(data.test_labels):
            note += f", tests on {len(task.test_labels)} of {len(data.test_labels)}"
        before = torch.arange(len(data.train_labels)) if data.rows is None else data.rows
        classes = data.original_classes if data.row_classes is None else data.row_classes
        notes = "\n".join(line for line in (data.note, note) if line)
        return replace(task, note=notes, rows=before[train], row_classes=classes)

    def _sides(self, classes: int) -> tuple[Tensor, Tensor]:
        """Return the positive and the negative classes."""
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

    def _thinned(
        self, positive: np.ndarray, owners: np.ndarray | None, ratio: float, seed: int
    ) -> np.ndarray:
        """Return the samples to keep, in order; clients that own their data keep their own."""
        if owners is None:
            return self._thin(positive, ratio, seed)
        kept = []
        for client in np.unique(owners):
            own = np.flatnonzero(owners == client)
            kept.append(own[self._thin(positive[own], ratio, seed, int(client))])
        return np.concatenate(kept)

    @staticmethod
    def _thin(positive: np.ndarray, ratio: float, seed: int, client: int = 0) -> np.ndarray:
        """Return the samples to keep, given which are positive, in order."""
        positives, negatives = np.flatnonzero(positive), np.flatnonzero(~positive)
        wanted = int(ratio / (1 - ratio) * len(negatives))
        if not 1 <= wanted <= len(positives):
            raise InputError(
                f"imbalance: positive_ratio={ratio} asks for {wanted} positives, the data has "
                f"{len(positives)} (and {len(negatives)} negatives); choose another ratio, or null "
                "to keep all"
            )
        kept = generator(seed, "thinning", client).permutation(positives)[:wanted]
        return np.sort(np.concatenate([negatives, kept]))
