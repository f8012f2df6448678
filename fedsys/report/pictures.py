"""The pictures of a report, PNG and SVG: a metric against all axes, who got what, who waited."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from fedsys.report.configurations import AXES, Configuration, Point, smaller_is_better
from fedsys.report.runs import Run
from fedsys.runtime.curves import drawable

PALETTE = (
    "#2b6cb0", "#c05621", "#2f855a", "#b83280", "#6b46c1", "#b7791f", "#2c7a7b", "#c53030",
    "#4a5568", "#7b341e", "#1a365d", "#22543d",
)  # fmt: skip
_DASHES = ("-", "--", ":", "-.")


def style(index: int) -> dict[str, str]:
    """Colour and dashes of the curve with this number, the same on the page and in pictures."""
    # Each its own dashes: of two curves that coincide, both are seen.
    dashes = _DASHES[(index + index // len(PALETTE)) % len(_DASHES)]
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": dashes}


def draw_metric(
    configured: Sequence[Configuration], metric: str, best: Configuration | None, stem: Path
) -> list[Path]:
    """A panel for each axis; writes stem.png and stem.svg."""
    from matplotlib.figure import Figure

    # Margins by hand: to have them found takes longer than the drawing.
    columns = 1 if max((len(c.label) for c in configured), default=0) > 50 else 2
    below = 0.8 + 0.19 * ceil(len(configured) / columns)
    width, height = 11.0, 7.2 + below
    figure = Figure(figsize=(width, height))
    room = {"left": 0.8 / width, "right": 1 - 0.15 / width, "wspace": 0.2, "hspace": 0.22}
    room |= {"bottom": below / height, "top": 1 - 0.15 / height}
    panels = figure.subplots(2, 2, gridspec_kw=room)
    for axis, panel in zip(AXES, panels.flat, strict=True):
        curves = [c.curve(metric, axis) for c in configured]
        for index, (configuration, points) in enumerate(zip(configured, curves, strict=True)):
            mark = configuration is best
            draw_curve(panel, points, configuration.label, index, 2.6 if mark else 1.4)
        scale(panel, metric, [point.mean for points in curves for point in points])
        panel.set_xlabel(AXES[axis])
        panel.set_ylabel(metric)
        panel.grid(alpha=0.3)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=columns, fontsize=8)
    return save(figure, stem)


def draw_curve(panel: Any, points: Sequence[Point], label: str, index: int, width: float) -> None:
    """The mean as a line, the seeds as a band."""
    if not points:
        return
    x = [point.x for point in points]
    look = style(index)
    marker = "." if len(points) < 30 else ""
    y = drawable(p.mean for p in points)
    panel.plot(x, y, label=label, linewidth=width, marker=marker, **look)
    if any(point.seeds > 1 for point in points):
        low, high = drawable(p.low for p in points), drawable(p.high for p in points)
        panel.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def scale(panel: Any, metric: str, values: Sequence[float]) -> None:
    """A logarithmic axis for what shrinks over more than a decade."""
    if is_logarithmic(metric, values):
        panel.set_yscale("log", nonpositive="mask")


def is_logarithmic(metric: str, values: Sequence[float]) -> bool:
    """Whether a metric is best seen by its digits."""
    positive = [value for value in values if isfinite(value) and value > 0]
    shrinks = smaller_is_better(metric) and len(positive) > len(values) / 2
    return shrinks and max(positive) > 10 * min(positive)


def counts_of(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """The classes, and how many samples of each a client has, if the run dealt data."""
    path = run.folder / "partition.npz"
    if not path.is_file():
        return None
    with np.load(path) as deal:
        owners, classes = deal["client"], deal["classes"]
    names = np.unique(classes)
    clients = range(int(owners.max()) + 1)
    return names, np.stack([(classes[owners == m][:, None] == names).sum(0) for m in clients])


def draw_waits(runs: Sequence[tuple[str, Run]], stem: Path) -> list[Path]:
    """Seconds that each rank spent waiting for the others."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.2 + 0.5 * len(runs)), layout="constrained")
    panel = figure.subplots()
    for row, (_, run) in enumerate(runs):
        waits = run.summary["seconds_waited_by_rank"]
        height = 0.8 / len(waits)
        places = [row - 0.4 + height * (rank + 0.5) for rank in range(len(waits))]
        panel.barh(places, waits, height=0.9 * height, color=style(row)["color"])
    panel.set_yticks(range(len(runs)), labels=[label for label, _ in runs], fontsize=8)
    panel.invert_yaxis()
    panel.set_xlabel("seconds in collectives, a bar for each rank")
    return save(figure, stem)


def save(figure: Any, stem: Path) -> list[Path]:
    """PNG and SVG; the same picture is the same file, whenever it is drawn."""
    import matplotlib

    paths = [stem.with_name(f"{stem.name}.{form}") for form in ("png", "svg")]
    with matplotlib.rc_context({"svg.hashsalt": "fedsys"}):
        figure.savefig(paths[0], dpi=110)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
