"""The figure of a run: every metric against communication rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import nan
from pathlib import Path
from typing import Any

from fedsys.core.errors import InputError
from fedsys.core.metrics import Record, client_metrics_of, importance, metric, metrics_of

_PANEL = (4.2, 3.4)
_FEW_POINTS = 40
_LARGEST_VALUE = 1e100
"""The ticks of a logarithmic axis up to nearly 1e308 overflow, and cannot be drawn."""
MOST_CLIENTS = 64
"""The clients whose curves are drawn."""
_LAST_GLYPH, _LONGEST_TEXT = 0x2FFF, 200


def plot(records: list[Record], path: Path, title: str) -> None:
    """Draw one panel per metric and write the figure to `path`."""
    from matplotlib.figure import Figure

    names = sorted({name for record in records for name in metrics_of(record)}, key=importance)
    width, height = _PANEL[0] * len(names), _PANEL[1]
    figure = Figure(figsize=(width, height))
    # Fixed margins in inches: a layout engine takes as long as the drawing itself.
    room = {"left": 0.85 / width, "right": 1 - 0.15 / width}
    room |= {"bottom": 0.55 / height, "top": 1 - 0.45 / height, "wspace": 0.42}
    panels = figure.subplots(1, len(names), squeeze=False, gridspec_kw=room)
    for name, panel in zip(names, panels[0], strict=True):
        draw_clients(panel, records, name)
        points = [(r["round"], r[name]) for r in records if name in r]
        rounds = [at for at, _ in points]
        values = drawable(value for _, value in points)
        panel.plot(rounds, values, marker="." if len(points) < _FEW_POINTS else "")
        if metric(name).vanishes:
            positive = [value for value in values if value > 0]
            if positive and max(positive) > 10 * min(positive):
                panel.set_yscale("log", nonpositive="mask")
            else:  # a logarithmic axis would exaggerate a change of less than a decade
                panel.set_ylim(bottom=0)
        panel.set_xlabel("communication round")
        panel.set_ylabel(picture_text(name))
        panel.grid(alpha=0.3)
    figure.suptitle(picture_text(title))
    figure.savefig(path, dpi=110)


def draw_clients(panel: Any, records: Sequence[Record], name: str, axis: str = "round") -> None:
    """Draw a metric of each client, if records have it, as thin lines behind the others."""
    found = [(r[axis], client_metrics_of(r)[name]) for r in records if name in client_metrics_of(r)]
    clients = max((len(values) for _, values in found), default=0)
    for client in range(min(clients, MOST_CLIENTS)):
        line = [values[client] if client < len(values) else None for _, values in found]
        y = drawable(nan if value is None else value for value in line)
        panel.plot([x for x, _ in found], y, color="0.6", linewidth=0.6, zorder=1)


def new_axes() -> Any:
    """Return the axes of a new figure, which does not depend on the backend of pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=(6.4, 4.0), layout="constrained").subplots()


def draw_metric(panel: Any, name: str, records: Sequence[Record], label: str) -> None:
    """Draw a metric against rounds, on the axis and with the meaning that the metric declares."""
    points = [(record["round"], record[name]) for record in records if name in metrics_of(record)]
    if not points:
        raise no_such_metric(name, records)
    values = drawable(value for _, value in points)
    look = {"marker": "." if len(points) < _FEW_POINTS else "", "label": picture_text(label)}
    draw_clients(panel, records, name)
    panel.plot([at for at, _ in points], values, **look)
    if metric(name).needs_log_axis(values):
        panel.set_yscale("log", nonpositive="mask")
    label_axes(panel, name)


def label_axes(panel: Any, name: str) -> None:
    """Name the axes of a metric against rounds, and put its meaning above them."""
    about = metric(name)
    panel.set_xlabel("communication round")
    panel.set_ylabel(picture_text(f"{name} ({about.unit})" if about.unit else name))
    panel.set_title(picture_text(about.meaning), fontsize="small", wrap=True)
    panel.grid(alpha=0.3)


def no_such_metric(name: str, records: Iterable[Record]) -> InputError:
    """Return the error for a metric that no record has."""
    known = {one for record in records for one in metrics_of(record)}
    listed = ", ".join(sorted(known, key=importance)) or "none"
    return InputError(f"metric must be one of {listed}; got {name!r}")


def drawable(values: Iterable[float]) -> list[float]:
    """Return the values with NaN for those of a diverged run that are too large to draw."""
    return [value if abs(value) <= _LARGEST_VALUE else nan for value in values]


def picture_text(text: str) -> str:
    """Return a text that matplotlib draws literally: no formula, no glyph missing in its font."""
    fits = [c if c.isprintable() and ord(c) < _LAST_GLYPH else "?" for c in text[:_LONGEST_TEXT]]
    plain = "".join(fits).replace("$", r"\$")
    return (
        f" {plain}" if plain.startswith("_") else plain
    )  # a legend omits labels that start with _
