"""The figure of an entry: its panels, its lines, and the theorems' bounds where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from fedsys.report.configurations import AXES
from fedsys.report.pictures import draw_curve, save, scale, style
from fedsys.reproduce.entries import Entry
from fedsys.reproduce.lines import Line

_PER_ROW = 3
_PANEL = (4.6, 3.7)


def draw(entry: Entry, lines: Sequence[Line], stem: Path) -> list[Path]:
    """Write stem.png and stem.svg."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(line.panel for line in lines))
    names = list(dict.fromkeys(line.name for line in lines))
    below = 0.15 * ceil((len(names) + 1) / 2)
    columns = 2 if len(panels) == 4 else min(_PER_ROW, len(panels)) or 1
    rows = ceil(len(panels) / columns) or 1
    figure = Figure(
        figsize=(_PANEL[0] * columns, (_PANEL[1] + below) * rows + 0.5), layout="constrained"
    )
    grid = figure.subplots(rows, columns, squeeze=False)
    for place in grid.flat[len(panels) :]:
        place.set_axis_off()
    for title, place in zip(panels, grid.flat, strict=False):
        here = [line for line in lines if line.panel == title]
        _draw_panel(entry, place, here, names)
        place.set_title(title, fontsize=10)
    figure.suptitle(f"{entry.what}: {entry.title}", fontsize=11)
    return save(figure, stem)


def _draw_panel(entry: Entry, panel: Any, lines: Sequence[Line], names: Sequence[str]) -> None:
    metric = entry.metrics[0]
    values: list[float] = []
    for line in lines:
        index = names.index(line.name)
        label = f"{line.name} ({line.setting})" if line.setting else line.name
        points = line.best.curve(metric, entry.axis) if line.best else []
        if not points:
            panel.plot([], [], label=f"{line.name}: {line.absent()}", **style(index))
            continue
        values += [point.mean for point in points]
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
    panel.set_xlabel(AXES[entry.axis])
    panel.set_ylabel(metric)
    panel.grid(alpha=0.3)
    # Below, where it hides no curve.
    panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
