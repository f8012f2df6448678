"""What all data sets of the user's own have in common: clients, schemas, and a test part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedsys.core.errors import InputError, require
from fedsys.core.fields import Checked
from fedsys.core.random import generator
from fedsys.core.site import Site
from fedsys.data.dataset import Dataset
from fedsys.data.own.schema import Schema, agreed, named_client

CLIENT = "{client}"
"""Stands for the number of the client in a path."""


@runtime_checkable
class OwnedSource(Protocol):
    """A data set of which each client may own a part.

    Attributes:
        is_owned: whether clients own parts of it, so that there is nothing to partition.
    """

    is_owned: bool

    def load(self) -> Dataset:
        """Read the data set, to be partitioned."""

    def load_owned(self, site: Site) -> Dataset:
        """Read the parts of the clients hosted at a site, after all clients agree on a schema."""


@dataclass(frozen=True)
class ClientPart:
    """The training and the test samples of one client, as they were read.

    Attributes:
        train: the samples to train on; what they are depends on the source.
        test: the samples to test on.
        schema: what the other clients must agree on.
    """

    train: Any
    test: Any
    schema: Schema


Pair = tuple[Tensor, Tensor]
"""Inputs [N, ...] and labels [N]."""


@dataclass(frozen=True)
class PairPart(ClientPart):
    """The tensors of one client."""

    train: Pair
    test: Pair


AnyPart = TypeVar("AnyPart", bound=ClientPart, covariant=True)


@dataclass(frozen=True, kw_only=True)
class OwnSource(Checked, ABC, Generic[AnyPart]):
    """A data set of the user's own, one for each client or one to be partitioned.

    Subclasses read the part of one client (`_read`), and build the data set of several parts after
    all clients have agreed on a schema (`_build`).
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def is_owned(self) -> bool:
        """Whether clients own parts of it, so that there is nothing to partition."""

    @abstractmethod
    def _read(self, client: int) -> AnyPart:
        """Read the part of one client, or all of it (client 0) if it is to be partitioned."""

    @abstractmethod
    def _build(self, parts: Mapping[int, Any], schema: Schema, site: Site) -> Dataset:
        """Build the data set of the hosted clients' parts, one client after another."""

    def load(self) -> Dataset:
        """Read the data set, to be partitioned."""
        part = self._read(0)
        data = self._build({0: part}, agreed(self.name, {0: part.schema}, Site()), Site())
        return replace(data, train_owners=None, test_owners=None)

    def load_owned(self, site: Site) -> Dataset:
        """Read the parts of the clients hosted at a site, after all clients agree on a schema."""
        if not self.is_owned:
            raise InputError(
                f"{self.name}: partition=none is for data that clients own, and path has no "
                f"{CLIENT}; put {CLIENT} where paths differ, or choose another partition"
            )
        parts = {}
        for client in site.hosted:
            try:
                parts[client] = self._read(client)
            except InputError as error:
                raise InputError(f"{named_client(client, site)}: {error.message}") from error
        schema = agreed(self.name, {c: part.schema for c, part in parts.items()}, site)
        return self._build(parts, schema, site)


@dataclass(frozen=True, kw_only=True)
class OwnFiles(OwnSource[AnyPart]):
    """Files of the user's own.

    Args:
        path: the path of the data; {client} in it is the number of the client that owns it.
        test_path: the path of the test samples; null: `test_share` of the samples are kept for
            testing.
        test_share: the fraction of the samples of each class that is kept for testing.
        seed: the seed of the choice of test samples.
    """

    path: str | None = None
    test_path: str | None = None
    test_share: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.test_share < 1, self.name, "test_share", self.test_share, "in (0, 1)")
        if self.test_path is not None and (CLIENT in self.test_path) > self.is_owned:
            raise InputError(f"{self.name}: test_path has {CLIENT}, and path has not")

    @property
    def is_owned(self) -> bool:
        """Whether `path` has a place for the number of the client."""
        return self.path is not None and CLIENT in self.path

    def _file(self, path: str | None, client: int) -> Path:
        """Return a path of a client; refuse one that is missing."""
        if path is None:
            rule = f"the path of the data, such as data/{CLIENT}.csv with partition=none"
            require(False, self.name, "path", path, rule)
        assert path is not None
        found = Path(path.replace(CLIENT, str(client))).expanduser()
        if not found.exists():
            raise InputError(f"{self.name}: {found} is missing")
        return found

    def _split(self, labels: np.ndarray, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the training and of the test part, with the same share per class."""
        order = generator(self.seed, "test part", client).permutation(len(labels))
        members = [order[labels[order] == label] for label in np.unique(labels)]
        held = [m[: round(self.test_share * len(m))] for m in members]
        test = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *held]))
        if len(test) == 0 or len(test) == len(labels):
            raise InputError(
                f"{self.name}: {len(labels)} samples are too few to keep {self.test_share:.0%} of "
                "each class for testing; give test_path"
            )
        return np.setdiff1d(order, test), test

    def _divided(self, pair: Pair, client: int) -> tuple[Pair, Pair]:
        """Return the training and the test part of one client's samples."""
        inputs, labels = pair
        train, test = map(torch.from_numpy, self._split(labels.numpy(), client))
        return (inputs[train], labels[train]), (inputs[test], labels[test])


def owners(sizes: Mapping[int, int]) -> Tensor:
    """Return the client of each sample, given the number of samples of each client in order."""
    clients = torch.tensor(list(sizes), dtype=torch.int64)
    return clients.repeat_interleave(torch.tensor(list(sizes.values()), dtype=torch.int64))


def joined(parts: Mapping[int, PairPart]) -> dict[str, Any]:
    """Return the tensors of a `Dataset` that has the samples of several clients, in order."""
    fields: dict[str, Any] = {}
    for part in ("train", "test"):
        pairs: dict[int, Pair] = {client: getattr(one, part) for client, one in parts.items()}
        fields[f"{part}_inputs"] = torch.cat([inputs for inputs, _ in pairs.values()])
        fields[f"{part}_labels"] = torch.cat([labels for _, labels in pairs.values()])
        fields[f"{part}_owners"] = owners({c: len(labels) for c, (_, labels) in pairs.items()})
    return fields
