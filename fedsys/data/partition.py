"""Partitions of the training samples over clients: pure functions of (labels, clients, seed)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from fedsys.core.errors import InputError, require
from fedsys.core.fields import Checked
from fedsys.core.random import generator
from fedsys.data.dataset import Dataset


class Partition(Protocol):
    """A rule that partitions samples, which a configuration of the group `partition` builds.

    The indices are rows of the data set. If a problem leaves some rows out (`Imbalance`), these are
    removed from the parts afterwards. A partition with the class attribute `of_kept = True` gets
    the labels of the remaining samples instead and returns indices into them; so do all partitions
    below, which therefore divide the remaining samples evenly.
    """

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Return the indices of each client's samples.

        Args:
            labels: the class of each sample [N].
            clients: M, the number of arrays to return.
            seed: the seed of the run.
        """


@dataclass(frozen=True)
class IID(Checked):
    """Give every client the same number of samples (up to one), drawn without replacement."""

    of_kept: ClassVar[bool] = True

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Cut one permutation into `clients` parts."""
        order = generator(seed, "partition").permutation(len(labels))
        return [np.sort(part) for part in np.array_split(order, clients)]


@dataclass(frozen=True)
class Dirichlet(Checked):
    """Divide every class over the clients by shares from a Dirichlet distribution.

    A client without samples gets one from the largest client.

    Args:
        alpha: the concentration. If it is small, a client has few classes; if it is large, the
            partition is close to IID.
    """

    of_kept: ClassVar[bool] = True

    alpha: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha > 0, "dirichlet", "alpha", self.alpha, "positive")

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Cut each class by its own random shares."""
        stream = generator(seed, "partition")
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = stream.permutation(np.flatnonzero(labels == label))
            shares = stream.dirichlet(np.full(clients, self.alpha))
            _assign(parts, _cut(members, shares), range(clients))
        return _fill_empty_clients(_joined(parts))


@dataclass(frozen=True)
class Disjoint(Checked):
    """Give every class to a single client (Huang et al., AISTATS 2024, arXiv:2211.07303, 6.2).

    Classes are assigned round-robin, first those of the first half in a seeded order, then those of
    the second half. Hence, if there are at most half as many clients as classes and the task is one
    half against the other, each client has positives and negatives. With more clients than classes,
    several clients share a class evenly.
    """

    of_kept: ClassVar[bool] = True

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Assign whole classes, or parts of one class."""
        stream = generator(seed, "partition")
        classes = np.unique(labels)
        first, second = np.split(classes, [len(classes) // 2])
        order = np.concatenate([stream.permutation(first), stream.permutation(second)])
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for place, label in enumerate(order):
            owners = range(place, clients, len(order)) or [place % clients]
            members = stream.permutation(np.flatnonzero(labels == label))
            _assign(parts, np.array_split(members, len(owners)), owners)
        return _joined(parts)


@dataclass(frozen=True)
class Group(Checked):
    """Divide every group by the same shares, assigned to the clients in a random order per group.

    Li et al. (2022), arXiv:2205.01608, Section 6, use shares 2:2:6. The group of a sample is the
    group attribute of the data set (`by_group`), or its class if the data set has none. A client
    without samples gets one from the largest client.

    Args:
        shares: a positive number for each client; they need not sum to 1.
    """

    of_kept: ClassVar[bool] = True

    shares: Sequence[float] = field(default=(2, 2, 6))

    by_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = len(self.shares) > 0 and all(share > 0 for share in self.shares)
        require(valid, "group", "shares", list(self.shares), "a list of positive numbers")

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Cut each group by `shares`."""
        rule = f"one number for each of the {clients} clients"
        require(len(self.shares) == clients, "group", "shares", list(self.shares), rule)
        stream = generator(seed, "partition")
        shares = np.asarray(self.shares, dtype=float)
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = stream.permutation(np.flatnonzero(labels == label))
            owners = stream.permutation(clients)
            _assign(parts, _cut(members, shares / shares.sum()), owners.tolist())
        return _fill_empty_clients(_joined(parts))


@dataclass(frozen=True)
class PowerLaw(Checked):
    """Give client m a number of samples proportional to 1 / (m + 1)^exponent, of all classes.

    A client without samples gets one from the largest client.

    Args:
        exponent: 0 gives parts of equal size.
    """

    of_kept: ClassVar[bool] = True

    exponent: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.exponent >= 0, "power_law", "exponent", self.exponent, "at least 0")

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Cut one permutation by the sizes of the parts."""
        order = generator(seed, "partition").permutation(len(labels))
        sizes = np.arange(1.0, clients + 1) ** -self.exponent
        parts = _cut(order, sizes / sizes.sum())
        return _fill_empty_clients([np.sort(part) for part in parts])


@dataclass(frozen=True)
class NoPartition(Checked):
    """Nothing is partitioned: every client has data of its own, which only its rank reads.

    The data set names the data of each client, such as dataset.path=data/hospital-{client}.csv.
    """

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Refuse a data set that clients do not own."""
        raise InputError(
            "partition=none is for data that clients own; give the data set a path with {client}, "
            "such as dataset.path=data/{client}.csv, or choose another partition"
        )


@dataclass(frozen=True)
class ClientSplit:
    """The result of a partition: the samples of each client and their classes.

    Attributes:
        parts: the indices of each client's training samples.
        classes: the class of every training sample.
        note: remarks on the data for the user.
        rows: the rows of the data set that the samples are; None if they are all rows, in order.
        is_owned: whether clients own their data; only the samples of hosted clients are there.
    """

    parts: list[np.ndarray]
    classes: np.ndarray
    note: str = ""
    rows: np.ndarray | None = None
    is_owned: bool = False

    def owners(self) -> np.ndarray:
        """Return the client that has each sample, or -1 if no client has it."""
        owners = np.full(len(self.classes), -1)
        for client, part in enumerate(self.parts):
            owners[part] = client
        return owners

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the classes, and the number of samples of each per client [M, classes]."""
        names = np.unique(self.classes)
        held = (self.classes[part] for part in self.parts)
        counts = [(classes[:, None] == names).sum(0) for classes in held]
        return names, np.stack(counts)


def split_clients(data: Dataset, partition: Partition, clients: int, seed: int) -> ClientSplit:
    """Partition the training part by its original classes, or by its groups.

    If clients own their data, each hosted client has its own, and the parts of others are empty.
    """
    classes = data.original_classes.numpy()
    if data.train_owners is not None:
        owners = data.train_owners.numpy()
        owned = [np.flatnonzero(owners == client) for client in range(clients)]
        return ClientSplit(owned, classes, data.note, is_owned=True)
    groups = data.train_groups if getattr(partition, "by_group", False) else None
    labels = classes if groups is None else groups.numpy()
    rows = None if data.rows is None else data.rows.numpy()
    by_row = not getattr(partition, "of_kept", False)
    if by_row and rows is not None and data.row_classes is not None and groups is None:
        every = data.row_classes.numpy()
        parts = _kept(_valid(partition.split(every, clients, seed), len(every)), rows)
    else:
        parts = _valid(partition.split(labels, clients, seed), len(labels))
    refuse_empty_clients(parts)
    return ClientSplit(parts, classes, data.note, rows)


def _valid(parts: list[np.ndarray], rows: int) -> list[np.ndarray]:
    """Return the parts; refuse indices that are not rows of the data set."""
    for client, part in enumerate(parts):
        outside = part[(part < 0) | (part >= rows)]
        if len(outside):
            raise InputError(
                f"partition: client {client} has row {outside[0]}, the training part has rows 0 to "
                f"{rows - 1}"
            )
    return parts


def _kept(parts: list[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
    """Return the positions of these rows among the remaining `rows`, which are sorted."""
    places = [np.searchsorted(rows, part).clip(max=len(rows) - 1) for part in parts]
    return [at[rows[at] == part] for at, part in zip(places, parts, strict=True)]


def refuse_empty_clients(parts: list[np.ndarray]) -> None:
    """Refuse a partition with an empty client, which could not compute a gradient."""
    empty = [client for client, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise InputError(
            f"client {empty[0]} has no training sample ({sum(map(len, parts))} samples over "
            f"{len(parts)} clients); use fewer clients or another partition"
        )


def _cut(members: np.ndarray, shares: np.ndarray) -> list[np.ndarray]:
    """Cut an array into consecutive pieces of these shares; rounding moves a cut by at most 1/2."""
    ends = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
    return np.split(members, ends)


def _assign(parts: list[list[np.ndarray]], pieces: list[np.ndarray], owners: Sequence[int]) -> None:
    for owner, piece in zip(owners, pieces, strict=True):
        parts[owner].append(piece)


def _joined(parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Return each client's pieces as one sorted array of rows."""
    nothing = np.empty(0, dtype=np.int64)
    return [np.sort(np.concatenate([nothing, *pieces])) for pieces in parts]


def _fill_empty_clients(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Give each empty client one sample from the largest client, if that has more than one."""
    parts = list(parts)
    for client, part in enumerate(parts):
        largest = max(range(len(parts)), key=lambda other: len(parts[other]))
        if len(part) == 0 and len(parts[largest]) > 1:
            parts[client], parts[largest] = parts[largest][:1], parts[largest][1:]
    return parts
