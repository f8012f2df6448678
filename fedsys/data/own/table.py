"""Tables of the user's own: CSV and Parquet files with a column of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsys.core.errors import InputError, require
from fedsys.core.site import Site
from fedsys.data.dataset import Dataset
from fedsys.data.own.encoding import TableEncoding, as_text, codes, kind_of
from fedsys.data.own.frames import Frame, read_frame
from fedsys.data.own.schema import NUMBER, TEXT, Schema, named_client
from fedsys.data.own.source import ClientPart, OwnFiles, owners
from fedsys.data.sources.tables import GroupedDataset

_DIGITS = 12
"""Significant digits of means and deviations: the last ones depend on the order of summation, and
therefore on the number of ranks."""
PARTS = ("train", "test")


@dataclass(frozen=True)
class TablePart(ClientPart):
    """The rows of one client."""

    train: Frame
    test: Frame


@dataclass(frozen=True, kw_only=True)
class Table(OwnFiles[TablePart]):
    """A table with a header: a CSV file, or a Parquet file (`fedsys[parquet]`).

    All columns but the label are features: a column of numbers is one feature, a column of text is
    one feature per value (1 or 0). Rows with missing values are refused.

    Args:
        path: the file; {client} in it is the number of the client that owns it.
        test_path: the file with the test rows; null: `test_share` of the rows are for testing.
        test_share: the fraction of the rows of each class that is kept for testing.
        seed: the seed of the choice of test rows.
        label: the column with the class.
        classes: the values of the label, in the order of the classes; the last one of two is
            positive. null: the labels are the integers from 0.
        features: the columns that are features; null for all but the label and the group.
        categories: the values of text columns, by the name of the column.
        share_categories: whether clients may tell each other the values of text columns and labels
            that are not given; the union is used.
        group: a column that fairness problems compare groups by; it is no feature.
        scaling: "standard" for numbers with mean 0 and deviation 1 over the training rows of all
            clients, from sums over clients; "none" for the numbers as they are.
    """

    label: str = "label"
    classes: Sequence[Any] | None = None
    features: Sequence[str] | None = None
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    share_categories: bool = False
    group: str | None = None
    scaling: str = "standard"

    name: ClassVar[str] = "table"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ("standard", "none")
        require(self.scaling in known, "table", "scaling", self.scaling, " or ".join(known))

    def _read(self, client: int) -> TablePart:
        path = self._file(self.path, client)
        return self._part(read_frame(path), str(path), client)

    def _part(self, frame: Frame, where: str, client: int) -> TablePart:
        """Return the part of a client whose table is given."""
        train = self._selected(frame, where)
        if self.test_path is None:
            rows = self._split(np.array(as_text(train[self.label])), client)
            train, test = ({n: v[part] for n, v in train.items()} for part in rows)
        else:
            test_path = self._file(self.test_path, client)
            test = self._selected(read_frame(test_path), str(test_path))
            for name, values in test.items():
                if kind_of(values) != kind_of(train[name]):
                    raise InputError(
                        f"{test_path}: column {name!r} is {kind_of(values)}, and "
                        f"{kind_of(train[name])} in {where}"
                    )
        return TablePart(train, test, self._schema(train, test, where))

    def _selected(self, frame: Frame, where: str) -> Frame:
        """Return the columns that are used: the label, the group and the features."""
        own = [self.label] if self.group is None else [self.label, self.group]
        wanted = [*own, *(self.features or (name for name in frame if name not in own))]
        absent = next((name for name in wanted if name not in frame), None)
        if absent is not None:
            listed = ", ".join(frame)
            raise InputError(f"{where}: column {absent!r} is missing; its columns are {listed}")
        if len(wanted) == len(own):
            raise InputError(f"{where}: there is no column besides {' and '.join(own)}")
        return {name: frame[name] for name in wanted}

    def _schema(self, train: Frame, test: Frame, where: str) -> Schema:
        columns = {name: kind_of(values) for name, values in train.items()}
        shared = {}
        for name, kind in columns.items():
            is_label = name == self.label and self.classes is None and kind == TEXT
            is_category = name == self.group or (name != self.label and kind == TEXT)
            if self.share_categories and (is_label or is_category) and name not in self.categories:
                shared[name] = sorted({*as_text(train[name]), *as_text(test[name])})
        classes = 0
        if self.classes is None and columns[self.label] == NUMBER:
            classes = 1 + max(
                self._largest_label(part[self.label], where) for part in (train, test)
            )
        return Schema(columns=columns, classes=classes, values=shared)

    def _largest_label(self, labels: np.ndarray, where: str) -> int:
        wrong = np.flatnonzero((labels < 0) | (labels != np.round(labels)))
        if len(wrong):
            raise InputError(
                f"{where}: {self.label!r} of row {wrong[0] + 1} is {labels[wrong[0]]:g}; labels "
                "must be integers from 0, or give their values by dataset.classes=[...]"
            )
        return int(labels.max())

    def _build(self, parts: Mapping[int, TablePart], schema: Schema, site: Site) -> Dataset:
        encoding = TableEncoding(
            {
                name: NUMBER if kind == NUMBER else self._values_of(name, schema)
                for name, kind in schema.columns.items()
                if name not in (self.label, self.group)
            }
        )
        classes = self._class_names(schema)
        tensors: dict[str, Any] = {}
        for part in PARTS:
            frames = {c: getattr(one, part) for c, one in parts.items()}
            names = {c: named_client(c, site) for c in parts}
            inputs = [encoding.raw(frame, names[c]) for c, frame in frames.items()]
            labels = [codes(f, self.label, classes, names[c]) for c, f in frames.items()]
            tensors[f"{part}_inputs"] = torch.from_numpy(np.concatenate(inputs))
            tensors[f"{part}_labels"] = torch.from_numpy(np.concatenate(labels))
            tensors[f"{part}_owners"] = owners({c: len(f[self.label]) for c, f in frames.items()})
            if self.group is not None:
                known = self._values_of(self.group, schema)
                groups = [codes(f, self.group, known, names[c]) for c, f in frames.items()]
                tensors[f"{part}_groups"] = torch.from_numpy(np.concatenate(groups))
        encoding = self._scaled(encoding, tensors["train_inputs"], site)
        for part in PARTS:
            shift, scale = (
                torch.tensor(v, dtype=torch.float64) for v in (encoding.mean, encoding.deviation)
            )
            tensors[f"{part}_inputs"] = (tensors[f"{part}_inputs"] - shift) / scale
        given: dict[str, Any] = {
            "classes": len(classes),
            "name": self.name,
            "preparation": {
                "kind": "table",
                "label": self.label,
                "classes": list(classes),
                "columns": dict(encoding.columns),
                "mean": list(encoding.mean),
                "deviation": list(encoding.deviation),
            },
        }
        if self.group is None:
            return Dataset(**tensors, **given)
        given["group_names"] = tuple(self._values_of(self.group, schema))
        given["description"] = {"table": self.name, "group_column": self.group}
        return GroupedDataset(**tensors, **given)

    def _values_of(self, name: str, schema: Schema) -> list[str]:
        """Return the values of a column of text, or of the group."""
        given = self.categories.get(name, schema.values.get(name))
        if given is None:
            raise self._unknown_values(name, f"+dataset.categories.{name}")
        return [str(value) for value in given]

    def _unknown_values(self, name: str, option: str) -> InputError:
        return InputError(
            f"table: column {name!r} needs the list of its values, {option}=[...]; or let clients "
            "share the values by dataset.share_categories=true"
        )

    def _class_names(self, schema: Schema) -> list[str]:
        """Return the values of the label in the order of the classes."""
        if self.classes is not None:
            names = [str(value) for value in self.classes]
        elif self.label in schema.values:
            names = schema.values[self.label]
        elif schema.columns[self.label] == TEXT:
            raise self._unknown_values(self.label, "dataset.classes")
        else:
            names = [str(label) for label in range(schema.classes)]
        if len(names) < 2:
            raise InputError(
                f"table: column {self.label!r} has one class only ({', '.join(names)}) at all "
                "clients; a classifier needs two"
            )
        return names

    def _scaled(self, encoding: TableEncoding, inputs: Tensor, site: Site) -> TableEncoding:
        """Return the encoding with the mean and deviation of the numbers over all clients."""
        number = torch.from_numpy(encoding.is_number)
        width = inputs.shape[1]
        mean, deviation = inputs.new_zeros(width), inputs.new_ones(width)
        if self.scaling == "standard":
            count = inputs.new_tensor([len(inputs)])
            sums = site.peers.total(torch.cat([inputs.sum(0), count]))
            mean = torch.where(number, rounded(sums[:-1] / sums[-1]), mean)
            squares = site.peers.total((inputs - mean).square().sum(0))
            spread = rounded((squares / sums[-1]).sqrt())
            deviation = torch.where(number & (spread > 0), spread, deviation)
        return replace(encoding, mean=mean.tolist(), deviation=deviation.tolist())


def rounded(values: Tensor) -> Tensor:
    """Return values with 12 significant digits."""
    digits = [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]
    return torch.tensor(digits, dtype=torch.float64)
