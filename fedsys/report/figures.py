"""Figures of a report as PNG and SVG: a metric against every axis, and waiting times by rank."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from fedsys.core.metrics import metric as metric_named
from fedsys.report.clients import Line, client_lines
from fedsys.report.configurations import (
    AXES,
    Configuration,
    Point,
    bytes_axis,
)
from fedsys.report.runs import Run
from fedsys.training.curves import drawable, picture_text

PALETTE = (
    "#2b6cb0", "#c05621", "#2f855a", "#b83280", "#6b46c1", "#b7791f", "#2c7a7b", "#c53030",
    "#4a5568", "#7b341e", "#1a365d", "#22543d",
)  # fmt: skip
_DASHES = ("-", "--", ":", "-.")


def style(index: int) -> dict[str, str]:
    """Return colour and line style of curve number `index`, the same on the page and in figures."""
    # Neighbours differ in their dashes, so that both of two coinciding curves are visible.
    dashes = _DASHES[(index + index // len(PALETTE)) % len(_DASHES)]
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": dashes}


def draw_metric(
    configured: Sequence[Configuration], metric: str, best: Configuration | None, stem: Path
) -> list[Path]:
    """Draw a metric in one panel for each axis, write stem.png and stem.svg, and return them."""
    from matplotlib.figure import Figure

    # Fixed margins: a constrained layout takes longer than the drawing.
    columns = 1 if max((len(c.label) for c in configured), default=0) > 50 else 2
    below = 0.8 + 0.19 * ceil(len(configured) / columns)
    width, height = 11.0, 7.2 + below
    figure = Figure(figsize=(width, height))
    margins = {"left": 0.8 / width, "right": 1 - 0.15 / width, "wspace": 0.2, "hspace": 0.22}
    margins |= {"bottom": below / height, "top": 1 - 0.15 / height}
    panels = figure.subplots(2, 2, gridspec_kw=margins)
    bytes_label = bytes_axis(run for c in configured for run in c.runs)
    for axis, panel in zip(AXES, panels.flat, strict=True):
        curves = [c.curve(metric, axis) for c in configured]
        for index, configuration in enumerate(configured):
            draw_clients(panel, client_lines(configuration, metric, [axis]), index)
        for index, (configuration, points) in enumerate(zip(configured, curves, strict=True)):
            linewidth = 2.6 if configuration is best else 1.4
            draw_curve(panel, points, configuration.label, index, linewidth)
        scale(panel, metric, [point.mean for points in curves for point in points])
        panel.set_xlabel(bytes_label if axis == "bytes_up" else AXES[axis], fontsize=9)
        panel.set_ylabel(picture_text(metric))
        panel.grid(alpha=0.3)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=columns, fontsize=8)
    return save(figure, stem)


def draw_curve(panel: Any, points: Sequence[Point], label: str, index: int, width: float) -> None:
    """Draw the mean over the seeds as a line and their spread as a band."""
    if not points:
        return
    x = [point.x for point in points]
    look = style(index)
    marker = "." if len(points) < 30 else ""
    y = drawable(p.mean for p in points)
    panel.plot(x, y, label=picture_text(label), linewidth=width, marker=marker, **look)
    if any(point.seeds > 1 for point in points):
        low, high = drawable(p.low for p in points), drawable(p.high for p in points)
        panel.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def draw_clients(panel: Any, lines: Sequence[Line], index: int) -> None:
    """Draw thin lines of the clients behind the curve of all clients together."""
    for line in lines:
        x, y = [x for x, _ in line], drawable(y for _, y in line)
        panel.plot(x, y, color=style(index)["color"], linewidth=0.5, alpha=0.5, zorder=1)


def scale(panel: Any, metric: str, values: Sequence[float]) -> None:
    """Make the axis of a metric logarithmic where its values span more than a decade."""
    if metric_named(metric).needs_log_axis(values):
        panel.set_yscale("log", nonpositive="mask")


def draw_waits(runs: Sequence[tuple[str, Run]], stem: Path) -> list[Path]:
    """Draw the seconds that each rank spent waiting for the others."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.2 + 0.5 * len(runs)), layout="constrained")
    panel = figure.subplots()
    for row, (_, run) in enumerate(runs):
        waits = run.summary["seconds_waited_by_rank"]
        height = 0.8 / len(waits)
        places = [row - 0.4 + height * (rank + 0.5) for rank in range(len(waits))]
        panel.barh(places, waits, height=0.9 * height, color=style(row)["color"])
    panel.set_yticks(
        range(len(runs)), labels=[picture_text(label) for label, _ in runs], fontsize=8
    )
    panel.invert_yaxis()
    panel.set_xlabel("seconds in collectives (one bar for each rank)")
    return save(figure, stem)


def save(figure: Any, stem: Path) -> list[Path]:
    """Write a figure as PNG and SVG, byte-identical whenever it is drawn."""
    import matplotlib

    paths = [stem.with_name(f"{stem.name}.{form}") for form in ("png", "svg")]
    with matplotlib.rc_context({"svg.hashsalt": "fedsys"}):
        figure.savefig(paths[0], dpi=110)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
