"""The partitions of the runs: samples by client and class, read from partition.npz."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsys.report.configurations import Configuration
from fedsys.training.run_files import UnreadableError

Partition = tuple[str, np.ndarray, np.ndarray]
"""A label, the classes [c], and the number of samples of each client in each class [clients, c]."""
_MAX_PARTITIONS = 6
_MAX_CELLS = 1_000_000
_MAX_BYTES = 2**31
"""Size of an array in the archive; larger ones are not read."""


def partitions_of(configured: Sequence[Configuration]) -> tuple[list[Partition], list[str]]:
    """Return the distinct partitions of the runs, at most six, and a warning for each bad file."""
    found: dict[bytes, Partition] = {}
    warnings: list[str] = []
    for c in configured:
        for run in c.runs:
            try:
                counted = read_counts(run.folder / "partition.npz")
            except UnreadableError as error:
                warnings.append(f"{error}; it is ignored")
                continue
            if counted is not None and len(found) < _MAX_PARTITIONS:
                names, counts = counted
                label = f"{c.label}, seed {run.seed}: {int(counts.sum()):,} training samples"
                key = str(names.tolist()).encode() + bytes(counts.shape[0]) + counts.tobytes()
                found.setdefault(key, (label, names, counts))
    return list(found.values()), warnings


def read_counts(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Return classes and counts by client of a partition.npz; None if the file does not exist."""
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            if any(entry.file_size > _MAX_BYTES for entry in archive.infolist()):
                raise ValueError("too large")
        with np.load(path, allow_pickle=False) as client_split:
            owners, classes = client_split["client"], client_split["classes"]
        return _count(owners, classes)
    except (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile) as error:
        raise UnreadableError(f"{path} cannot be read") from error


def _count(owners: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shapes = owners.ndim == classes.ndim == 1 and len(owners) == len(classes) > 0
    if not shapes or owners.dtype.kind not in "iu" or classes.dtype.kind not in "iubU":
        raise ValueError("expected a client and a class for each sample")
    names, columns = np.unique(classes, return_inverse=True)
    clients = int(owners.max()) + 1
    if clients < 1 or clients * len(names) > _MAX_CELLS or int(owners.min()) < -1:
        raise ValueError("client numbers out of range")
    counts = np.zeros((clients, len(names)), dtype=np.int64)
    assigned = owners >= 0
    np.add.at(counts, (owners[assigned], columns[assigned]), 1)
    return names, counts
