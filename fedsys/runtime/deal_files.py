"""Who got what: partition.npz, and its picture, clients against classes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedsys.data import Deal

_NUMBERS_UP_TO = 200
"""Cells that are still legible with a number in each."""


@runtime_checkable
class HasDeal(Protocol):
    """An oracle whose clients were dealt samples of one data set."""

    deal: Deal | None


def deal_of(oracle: object) -> Deal | None:
    """What the clients of this oracle were dealt, if it is one of data."""
    return oracle.deal if isinstance(oracle, HasDeal) else None


def save_deal(deal: Deal, folder: Path) -> None:
    """partition.npz: `client` and `classes` of every training sample (client -1: nobody's)."""
    partial = folder / ".partition.npz.partial"
    with partial.open("wb") as file:
        np.savez_compressed(file, client=deal.owners(), classes=deal.classes)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / "partition.npz")


def plot_deal(deal: Deal, folder: Path) -> Path:
    """partition.png: the number of samples of every client and class."""
    return plot_counts(*deal.counts(), folder / "partition.png")


def plot_counts(names: np.ndarray, counts: np.ndarray, path: Path) -> Path:
    """A picture of how many samples of each class a client has."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    clients, classes = counts.shape
    size = (min(14.0, 2.5 + 0.45 * classes), min(12.0, 1.8 + 0.35 * clients))
    figure, panel = pyplot.subplots(figsize=size, layout="constrained")
    image = panel.imshow(counts, aspect="auto", cmap="Blues", vmin=0)
    if classes <= 20:
        panel.set_xticks(range(classes), labels=[str(name) for name in names])
    if clients <= 20:
        panel.set_yticks(range(clients))
    if counts.size <= _NUMBERS_UP_TO:
        for (client, column), number in np.ndenumerate(counts):
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
            colour = "white" if number > counts.max() / 2 else "black"
            panel.text(column, client, str(number), color=colour, **style)
    panel.set_xlabel("class")
    panel.set_ylabel("client")
    panel.set_title(f"{counts.sum():,} training samples")
    figure.colorbar(image, label="samples")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
