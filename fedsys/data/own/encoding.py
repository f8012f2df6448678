"""How columns of a table become inputs of a network, in training and in prediction alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsys.core.errors import InputError
from fedsys.data.own.frames import Frame
from fedsys.data.own.schema import NUMBER, TEXT


@dataclass(frozen=True)
class TableEncoding:
    """Numbers are shifted and scaled; text is one feature per known value, 1 or 0.

    Attributes:
        columns: for each feature column "number", or the values of a column of text.
        mean: what is subtracted from each feature.
        deviation: what each feature is divided by.
    """

    columns: Mapping[str, str | Sequence[str]]
    mean: Sequence[float] = ()
    deviation: Sequence[float] = ()

    @property
    def features(self) -> list[str]:
        """The names of the features."""
        return [
            name if values == NUMBER else f"{name}={value}"
            for name, values in self.columns.items()
            for value in ([""] if values == NUMBER else values)
        ]

    @property
    def is_number(self) -> np.ndarray:
        """Whether each feature is a column of numbers."""
        lengths = [1 if values == NUMBER else len(values) for values in self.columns.values()]
        return np.repeat([values == NUMBER for values in self.columns.values()], lengths)

    def raw(self, frame: Frame, where: str) -> np.ndarray:
        """Return the features [N, features] before they are shifted and scaled."""
        columns = [self._encoded(frame, name, where) for name in self.columns]
        return np.concatenate(columns, axis=1)

    def inputs(self, frame: Frame, where: str) -> np.ndarray:
        """Return the inputs [N, features] of a network."""
        found: np.ndarray = (self.raw(frame, where) - self.mean) / self.deviation
        return found

    def _encoded(self, frame: Frame, name: str, where: str) -> np.ndarray:
        if name not in frame:
            raise InputError(f"{where}: column {name!r} is missing")
        values, known = frame[name], self.columns[name]
        if known == NUMBER:
            if kind_of(values) != NUMBER:
                raise InputError(f"{where}: column {name!r} is text, and must be numbers")
            return values[:, None]
        places = codes(frame, name, list(known), where)
        one_hot: np.ndarray = (places[:, None] == np.arange(len(known))).astype(np.float64)
        return one_hot


def kind_of(values: np.ndarray) -> str:
    """Return the kind of a column, "number" or "text"."""
    return TEXT if values.dtype == object else NUMBER


def as_text(values: np.ndarray) -> list[str]:
    """Return the values of a column as text; integers have no decimal point."""
    if kind_of(values) == TEXT:
        return [str(value) for value in values]
    return [f"{value:.0f}" if value == round(value) else str(value) for value in values.tolist()]


def codes(frame: Frame, name: str, known: Sequence[Any], where: str) -> np.ndarray:
    """Return the places of a column's values among the known ones; name the first unknown one."""
    places = {str(value): place for place, value in enumerate(known)}
    texts = as_text(frame[name])
    for row, value in enumerate(texts):
        if value not in places:
            listed = ", ".join(places)
            raise InputError(
                f"{where}: {name!r} of row {row + 1} is {value!r}, and must be one of {listed}"
            )
    return np.array([places[value] for value in texts], dtype=np.int64)
