"""Data sets of clients as Python objects: tensors, arrays, pandas frames, torch data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsys.core.errors import InputError
from fedsys.core.site import Site
from fedsys.data.dataset import Dataset
from fedsys.data.own.frames import frame_of
from fedsys.data.own.source import ClientPart, OwnSource, Pair, PairPart
from fedsys.data.own.table import Table, TablePart
from fedsys.data.own.tensors import TensorFiles, built

Given = Callable[[int], Any] | Sequence[Any]
"""A function of the client's number, or a list with the data of each client."""


@dataclass(frozen=True)
class ClientDatasets(OwnSource[ClientPart]):
    """The data of each client: a list, or a function that is called for hosted clients only.

    The data of a client is a pair (inputs, labels) of tensors or arrays, a pandas frame, or any
    torch data set of pairs (input, label) with a length. {"train": ..., "test": ...} gives the test
    part as well; otherwise `test_share` of the samples of each class are kept for testing.

    Args:
        data: a function of the client's number, or a list with the data of each client.
        test_share: the fraction of the samples of each class that is kept for testing.
        seed: the seed of the choice of test samples.
        table: the columns of frames: label, classes, categories, and so on.
    """

    data: Given
    test_share: float = 0.2
    seed: int = 0
    table: Table = field(default_factory=Table)

    name = "data"
    is_owned = True

    def _read(self, client: int) -> ClientPart:
        given = self._of(client)
        test = None
        if isinstance(given, Mapping) and given.keys() == {"train", "test"}:
            given, test = given["train"], given["test"]
        where = "data"
        if _is_frame(given):
            return self._table_part(given, test, where, client)
        files = TensorFiles(test_share=self.test_share, seed=self.seed)
        pair = None if test is None else _pair(test)
        return files._part(_pair(given), pair, where, client)

    def _table_part(self, given: Any, test: Any, where: str, client: int) -> TablePart:
        table = replace(self.table, test_share=self.test_share, seed=self.seed)
        if test is None:
            return table._part(frame_of(given, where), where, client)
        train = table._selected(frame_of(given, where), where)
        held = table._selected(frame_of(test, where), where)
        return TablePart(train, held, table._schema(train, held, where))

    def _build(self, parts: Mapping[int, ClientPart], schema: Any, site: Site) -> Dataset:
        tables = {c: part for c, part in parts.items() if isinstance(part, TablePart)}
        if tables:
            return self.table._build(tables, schema, site)
        tensors = {c: part for c, part in parts.items() if isinstance(part, PairPart)}
        return built(self.name, tensors, schema)

    def _of(self, client: int) -> Any:
        if callable(self.data):
            return self.data(client)
        if client >= len(self.data):
            raise InputError(
                f"data: the list has {len(self.data)} data sets, and there is a client {client}; "
                f"use clients={len(self.data)}"
            )
        return self.data[client]


def _is_frame(given: Any) -> bool:
    return hasattr(given, "columns") and hasattr(given, "iloc")


def _pair(given: Any) -> Pair:
    """Return inputs [N, ...] and labels [N]."""
    if isinstance(given, tuple | list) and len(given) == 2 and not _is_sample(given[0]):
        inputs, labels = (
            torch.as_tensor(np.asarray(v) if not isinstance(v, Tensor) else v) for v in given
        )
        return inputs, labels
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        samples = [given[row] for row in range(len(given))]
        if samples and all(isinstance(one, tuple | list) and len(one) == 2 for one in samples):
            inputs = torch.stack(
                [
                    torch.as_tensor(np.asarray(x)) if not isinstance(x, Tensor) else x
                    for x, _ in samples
                ]
            )
            return inputs, torch.tensor([int(label) for _, label in samples])
    raise InputError(
        f"data: a client's data must be a pair (inputs, labels), a pandas frame or a torch data "
        f"set of pairs, got a {type(given).__name__}"
    )


def _is_sample(value: Any) -> bool:
    """Return whether a value is one sample (input, label), so that a list of two is a data set."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and not np.isscalar(value[0])
        and np.ndim(value[1]) == 0
    )
