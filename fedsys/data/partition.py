"""Which client gets which training samples: a pure function of (labels, clients, seed)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from fedsys.data.dataset import Dataset
from fedsys.errors import InputError, require
from fedsys.random import generator


class Partition(Protocol):
    """What a configuration of the group `partition` builds."""

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """The indices of each client's samples."""


@dataclass(frozen=True)
class IID:
    """Every client gets the same number of samples (up to one), drawn without replacement."""

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Cut one permutation into `clients` parts."""
        order = generator(seed, "partition").permutation(len(labels))
        return [np.sort(part) for part in np.array_split(order, clients)]


@dataclass(frozen=True)
class Dirichlet:
    """The shares of every class over the clients come from a Dirichlet distribution.

    Args:
        alpha: small: a client has few classes; large: as good as iid.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        require(self.alpha > 0, "dirichlet", "alpha", self.alpha, "positive")

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Cut each class by shares of its own; who would have nothing gets a sample."""
        stream = generator(seed, "partition")
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = stream.permutation(np.flatnonzero(labels == label))
            shares = stream.dirichlet(np.full(clients, self.alpha))
            _hand_out(parts, _cut(members, shares), range(clients))
        return _feed_the_empty(_joined(parts))


@dataclass(frozen=True)
class Disjoint:
    """No class on two clients (adafgda.txt Section 6.2).

    Classes are dealt in turn, those of the first half in a seeded order and then those of the
    second. So with at most as many clients as half the classes, each client of a binary task of
    the two halves has positives and negatives. With more clients than classes, the clients of a
    class share it evenly.
    """

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Deal whole classes, or parts of one."""
        stream = generator(seed, "partition")
        classes = np.unique(labels)
        first, second = np.split(classes, [len(classes) // 2])
        order = np.concatenate([stream.permutation(first), stream.permutation(second)])
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for place, label in enumerate(order):
            owners = range(place, clients, len(order)) or [place % clients]
            members = stream.permutation(np.flatnonzero(labels == label))
            _hand_out(parts, np.array_split(members, len(owners)), owners)
        return _joined(parts)


@dataclass(frozen=True)
class Group:
    """Every group is cut by the same shares, which go to the clients in an order of its own.

    fedbio.txt Section 6: shares 2:2:6. The group is the data set's own attribute (`by_group`), or
    the class where it has none.

    Args:
        shares: one for each client.
    """

    shares: Sequence[float] = field(default=(2, 2, 6))

    by_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        valid = len(self.shares) > 0 and all(share > 0 for share in self.shares)
        require(valid, "group", "shares", list(self.shares), "a list of positive numbers")

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Cut each group; who would have nothing gets a sample."""
        rule = f"one number for each of the {clients} clients"
        require(len(self.shares) == clients, "group", "shares", list(self.shares), rule)
        stream = generator(seed, "partition")
        shares = np.asarray(self.shares, dtype=float)
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = stream.permutation(np.flatnonzero(labels == label))
            owners = stream.permutation(clients)
            _hand_out(parts, _cut(members, shares / shares.sum()), owners.tolist())
        return _feed_the_empty(_joined(parts))


@dataclass(frozen=True)
class PowerLaw:
    """Client m gets a number of samples in proportion to 1 / (m + 1)^exponent, of all classes.

    Args:
        exponent: 0 is as good as iid.
    """

    exponent: float = 1.0

    def __post_init__(self) -> None:
        require(self.exponent >= 0, "power_law", "exponent", self.exponent, "at least 0")

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Cut one permutation by the sizes; who would have nothing gets a sample."""
        order = generator(seed, "partition").permutation(len(labels))
        sizes = np.arange(1.0, clients + 1) ** -self.exponent
        parts = _cut(order, sizes / sizes.sum())
        return _feed_the_empty([np.sort(part) for part in parts])


@dataclass(frozen=True)
class Deal:
    """A partition that was made: what each client has, and of which classes.

    Attributes:
        parts: the rows of the training part that each client has.
        classes: the class of every row.
        note: what the user should know about the data.
    """

    parts: list[np.ndarray]
    classes: np.ndarray
    note: str = ""

    def owners(self) -> np.ndarray:
        """The client that has each row; -1: nobody."""
        owners = np.full(len(self.classes), -1)
        for client, part in enumerate(self.parts):
            owners[part] = client
        return owners

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """The classes, and how many samples of each a client has: [M, classes]."""
        names = np.unique(self.classes)
        held = (self.classes[part] for part in self.parts)
        counts = [(classes[:, None] == names).sum(0) for classes in held]
        return names, np.stack(counts)


def deal(data: Dataset, partition: Partition, clients: int, seed: int) -> Deal:
    """Split the training part by its original classes, or by its groups."""
    classes = data.original_classes.numpy()
    groups = data.train_groups if getattr(partition, "by_group", False) else None
    labels = classes if groups is None else groups.numpy()
    parts = partition.split(labels, clients, seed)
    refuse_empty_clients(parts)
    return Deal(parts, classes, data.note)


def refuse_empty_clients(parts: list[np.ndarray]) -> None:
    """An empty client cannot take a step."""
    empty = [client for client, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise InputError(
            f"client {empty[0]} has no training sample ({sum(map(len, parts))} samples over "
            f"{len(parts)} clients); use fewer clients or another partition"
        )


def _cut(members: np.ndarray, shares: np.ndarray) -> list[np.ndarray]:
    """Consecutive pieces whose sizes are these shares, each rounded by less than one."""
    ends = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
    return np.split(members, ends)


def _hand_out(
    parts: list[list[np.ndarray]], pieces: list[np.ndarray], owners: Sequence[int]
) -> None:
    for owner, piece in zip(owners, pieces, strict=True):
        parts[owner].append(piece)


def _joined(parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Each client's pieces as one list of rows, in order."""
    nothing = np.empty(0, dtype=np.int64)
    return [np.sort(np.concatenate([nothing, *pieces])) for pieces in parts]


def _feed_the_empty(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Whoever has nothing takes a sample of whoever has most, as long as that leaves one."""
    parts = list(parts)
    for client, part in enumerate(parts):
        richest = max(range(len(parts)), key=lambda other: len(parts[other]))
        if len(part) == 0 and len(parts[richest]) > 1:
            parts[client], parts[richest] = parts[richest][:1], parts[richest][1:]
    return parts
