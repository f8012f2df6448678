"""The partition of the data: partition.npz and its figure, clients against classes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedsys.data import ClientSplit

_MOST_CELLS_WITH_NUMBERS = 200
"""The most cells in which numbers are legible."""


@runtime_checkable
class HasClientSplit(Protocol):
    """An oracle of clients that have parts of one data set."""

    client_split: ClientSplit | None


def client_split_of(oracle: object) -> ClientSplit | None:
    """Return the partition of the oracle's data set, or None if it has none."""
    return oracle.client_split if isinstance(oracle, HasClientSplit) else None


def save_client_split(client_split: ClientSplit, folder: Path) -> None:
    """Write partition.npz: `client` and `classes` of every training sample.

    `client` is -1 for a sample that no client has. `rows` is the row of each sample in the data
    set: a problem may leave some out.
    """
    rows = np.arange(len(client_split.classes)) if client_split.rows is None else client_split.rows
    partial = folder / ".partition.npz.partial"
    with partial.open("wb") as file:
        np.savez_compressed(
            file, client=client_split.owners(), classes=client_split.classes, rows=rows
        )
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / "partition.npz")


def plot_client_split(client_split: ClientSplit, folder: Path) -> Path:
    """Draw partition.png: the number of samples of every client and class."""
    return plot_counts(*client_split.counts(), folder / "partition.png")


def plot_counts(names: np.ndarray, counts: np.ndarray, path: Path) -> Path:
    """Draw the number of samples of every client and class."""
    from matplotlib.figure import Figure  # not pyplot, whose backend belongs to the user

    clients, classes = counts.shape
    size = (min(14.0, 2.5 + 0.45 * classes), min(12.0, 1.8 + 0.35 * clients))
    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    image = panel.imshow(counts, aspect="auto", cmap="Blues", vmin=0)
    if classes <= 20:
        panel.set_xticks(range(classes), labels=[str(name) for name in names])
    if clients <= 20:
        panel.set_yticks(range(clients))
    if counts.size <= _MOST_CELLS_WITH_NUMBERS:
        for (client, column), number in np.ndenumerate(counts):
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
            colour = "white" if number > counts.max() / 2 else "black"
            panel.text(column, client, str(number), color=colour, **style)
    panel.set_xlabel("class")
    panel.set_ylabel("client")
    panel.set_title(f"{counts.sum():,} training samples")
    figure.colorbar(image, label="samples")
    figure.savefig(path, dpi=110)
    return path
