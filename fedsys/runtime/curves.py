"""The picture of a run: every metric against communication rounds."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from pathlib import Path

from fedsys.runtime.display import HEADLINES, Record, metrics_of

_PANEL = (4.2, 3.4)
_HIGHEST = (
    1e100  # ticks of a logarithmic axis that gets near 1e308 are infinite, and cannot be drawn
)
_SHRINKING = {"distance_x", "distance_y", "relative_error", "operator_norm", "gap", "drift"}


def plot(records: list[Record], path: Path, title: str) -> None:
    """Draw one panel per metric and write the picture."""
    from matplotlib.figure import Figure

    names = sorted({name for record in records for name in metrics_of(record)}, key=_importance)
    width, height = _PANEL[0] * len(names), _PANEL[1]
    figure = Figure(figsize=(width, height))
    # Margins in inches: to have them found takes as long as the drawing.
    room = {"left": 0.7 / width, "right": 1 - 0.15 / width}
    room |= {"bottom": 0.55 / height, "top": 1 - 0.75 / height, "wspace": 0.3}
    panels = figure.subplots(1, len(names), squeeze=False, gridspec_kw=room)
    for name, panel in zip(names, panels[0], strict=True):
        points = [(r["round"], r[name]) for r in records if name in r]
        rounds = [at for at, _ in points]
        values = drawable(value for _, value in points)
        panel.plot(rounds, values, marker="." if len(points) < 40 else "")
        if name in _SHRINKING:
            positive = [value for value in values if value > 0]
            if positive and max(positive) > 10 * min(positive):
                panel.set_yscale("log", nonpositive="mask")
            else:  # a tenth of a decade on a logarithmic axis looks like a landslide
                panel.set_ylim(bottom=0)
        panel.set_xlabel("communication round")
        panel.set_title(name)
        panel.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)


def drawable(values: Iterable[float]) -> list[float]:
    """Without those of a run that is all but lost, which leave the curve where they would be."""
    return [value if abs(value) <= _HIGHEST else nan for value in values]


def _importance(name: str) -> tuple[int, str]:
    """What tells most comes first."""
    return (HEADLINES.index(name) if name in HEADLINES else len(HEADLINES), name)
