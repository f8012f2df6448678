"""Tables as columns of numbers or text, from CSV and Parquet files or from pandas frames."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsys.core.errors import InputError
from fedsys.data.formats import read_text, reading

Frame = dict[str, np.ndarray]
"""Columns by name: float64 for numbers, str objects for text."""

MISSING = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "null", "None"})


def read_frame(path: Path) -> Frame:
    """Read a table; every column is complete, and either all numbers or text."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return frame_of(_parquet(path), str(path))
    text = read_text(path)
    with reading(path):
        rows = list(csv.reader(text.splitlines(), strict=True, skipinitialspace=True))
    rows = [row for row in rows if row]
    if len(rows) < 2:
        raise InputError(f"{path} has no rows below its header")
    header = [name.strip() for name in rows[0]]
    repeated = next((name for name in header if header.count(name) > 1), None)
    if repeated is not None or "" in header:
        found = "a column without a name" if repeated is None else f"two columns {repeated!r}"
        raise InputError(f"{path} has {found}; its first row must have the names of the columns")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise InputError(f"{path}: row {number} has {len(row)} fields, not {len(header)}")
    columns = zip(*rows[1:], strict=True)
    return {n: _column(path, n, values) for n, values in zip(header, columns, strict=True)}


def frame_of(columns: Mapping[str, Any], what: str) -> Frame:
    """Return the columns of a mapping or a pandas frame; `what` names it in errors."""
    frame: Frame = {}
    for name in columns:
        values = np.asarray(columns[name])
        if values.ndim != 1:
            raise InputError(f"{what}: column {name!r} must have one value per row")
        if values.dtype.kind in "buif":
            frame[str(name)] = _complete(what, str(name), values.astype(np.float64))
        else:
            frame[str(name)] = _column(what, str(name), [_as_text(value) for value in values])
    if not frame or not len(next(iter(frame.values()))):
        raise InputError(f"{what} has no rows")
    return frame


def _as_text(value: Any) -> str:
    return "" if value is None or value != value else str(value)


def _column(where: object, name: str, values: Sequence[str]) -> np.ndarray:
    """Return a column as numbers if all its values are numbers, else as text."""
    stripped = [value.strip() for value in values]
    empty = next((row for row, value in enumerate(stripped) if value in MISSING), None)
    numbers = [_number(value) for value in stripped]
    if empty is not None:
        raise InputError(
            f"{where}: {name!r} of row {empty + 1} is missing ({values[empty]!r}); remove the row "
            "or fill in a value"
        )
    if any(number is None for number in numbers):
        return np.array(stripped, dtype=object)
    return _complete(where, name, np.array(numbers, dtype=np.float64))


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _complete(where: object, name: str, values: np.ndarray) -> np.ndarray:
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"{where}: {name!r} of row {row + 1} is {values[row]}; every number must be finite"
        )
    return values


def _parquet(path: Path) -> Mapping[str, Any]:
    try:
        import pandas
    except ImportError as error:
        raise InputError(
            f"{path}: Parquet files need pandas and pyarrow; install fedsys[parquet], or convert "
            "the file to CSV"
        ) from error
    with reading(path):
        try:
            frame: Mapping[str, Any] = pandas.read_parquet(path)
        except ImportError as error:
            raise InputError(
                f"{path}: Parquet files need pyarrow; install fedsys[parquet]"
            ) from error
    return frame
