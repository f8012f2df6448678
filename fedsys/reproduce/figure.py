"""Draw the figure of an entry: panels, lines, and the bounds of theorems if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any

from fedsys.report.configurations import AXES, deviation
from fedsys.report.figures import draw_curve, save, scale, style
from fedsys.reproduce.entries import Entry
from fedsys.reproduce.lines import Line
from fedsys.reproduce.results import paper_number

_PANELS_PER_ROW = 3
_PANEL_INCHES = (4.6, 3.7)


def draw(entry: Entry, lines: Sequence[Line], stem: Path) -> list[Path]:
    """Draw an entry, write stem.png and stem.svg, and return their paths."""
    return save(_bars(entry, lines) if entry.figure == "bars" else _curves(entry, lines), stem)


def _bars(entry: Entry, lines: Sequence[Line]) -> Any:
    """Draw last values with one standard deviation, a row for each panel, a column for a metric."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(line.panel for line in lines))
    names = list(dict.fromkeys(line.name for line in lines))
    columns, rows = len(entry.metrics), len(panels) or 1
    size = (3.6 * columns, (0.9 + 0.26 * len(names)) * rows + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex="col")
    for row, title in enumerate(panels):
        for metric, place in zip(entry.metrics, grid[row], strict=True):
            for line in (line for line in lines if line.panel == title):
                at = names.index(line.name)
                if finals := line.finals(metric):
                    look = {"color": style(at)["color"], "alpha": 0.75}
                    place.barh(at, mean(finals), xerr=deviation(finals), capsize=2, **look)
                paper, _ = paper_number(entry, line, metric)
                if paper is not None:
                    place.plot(paper, at, "D", color="black", markersize=4)
            place.set_yticks(range(len(names)), labels=names, fontsize=8)
            place.invert_yaxis()
            place.set_title(f"{title}: {metric}" if title else metric, fontsize=8)
            place.grid(alpha=0.3, axis="x")
    legend = "; diamonds: the paper's" if entry.numbers else ""
    figure.suptitle(f"{entry.what}: {entry.title}{legend}", fontsize=11)
    return figure


def _curves(entry: Entry, lines: Sequence[Line]) -> Any:
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(line.panel for line in lines))
    names = list(dict.fromkeys(line.name for line in lines))
    legend_height = 0.15 * ceil((len(names) + 1) / 2)
    columns = 2 if len(panels) == 4 else min(_PANELS_PER_ROW, len(panels)) or 1
    rows = ceil(len(panels) / columns) or 1
    figure = Figure(
        figsize=(_PANEL_INCHES[0] * columns, (_PANEL_INCHES[1] + legend_height) * rows + 0.5),
        layout="constrained",
    )
    grid = figure.subplots(rows, columns, squeeze=False)
    for place in grid.flat[len(panels) :]:
        place.set_axis_off()
    for title, place in zip(panels, grid.flat, strict=False):
        here = [line for line in lines if line.panel == title]
        _draw_panel(entry, place, here, names)
        place.set_title(title, fontsize=10)
    figure.suptitle(f"{entry.what}: {entry.title}", fontsize=11)
    return figure


def _draw_panel(entry: Entry, panel: Any, lines: Sequence[Line], names: Sequence[str]) -> None:
    metric = entry.metrics[0]
    values: list[float] = []
    later: list[float] = []
    for line in lines:
        index = names.index(line.name)
        label = f"{line.name} ({line.setting})" if line.setting else line.name
        points = line.best.curve(metric, entry.axis) if line.best else []
        if not points:
            panel.plot([], [], label=f"{line.name}: {line.absent()}", **style(index))
            continue
        values += [point.mean for point in points]
        later += [end for point in points[1:] for end in (point.low, point.high)]
        draw_curve(panel, points, label, index, 1.7)
        bound = line.bound() if entry.bounds else None
        if bound is not None:
            values.append(bound)
            look = {"color": style(index)["color"], "alpha": 0.8}
            panel.plot(points[-1].x, bound, marker="v", markersize=8, linestyle="none", **look)
            panel.axhline(bound, linewidth=0.8, linestyle=":", **look)
    if entry.bounds:
        panel.plot([], [], "v:", color="grey", label="bound of the theorem, at the end")
    scale(panel, metric, values)
    if panel.get_yscale() == "linear":
        _zoom_past_start(panel, values, later)
    panel.set_xlabel(AXES[entry.axis])
    panel.set_ylabel(metric)
    panel.grid(alpha=0.3)
    # Below the panel, where the legend covers no curve.
    panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _zoom_past_start(panel: Any, values: Sequence[float], later: Sequence[float]) -> None:
    """Exclude the start if the span of all later values is less than a third of the whole range."""
    span = max(later, default=0.0) - min(later, default=0.0)
    if 0 < span < (max(values) - min(values)) / 3:
        panel.set_ylim(min(later) - 0.05 * span, max(later) + 0.05 * span)
