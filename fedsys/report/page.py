"""The HTML page of a report: one self-contained file with its script, style sheet and data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from fedsys.core.metrics import metric
from fedsys.report.clients import client_lines, extremes
from fedsys.report.configurations import (
    AXES,
    Configuration,
    Point,
    best_cells,
    bytes_axis,
    spread,
    varied_settings,
)
from fedsys.report.figures import style
from fedsys.report.partitions import Partition
from fedsys.training.console import UNCOMPRESSED, human_bytes
from fedsys.training.run_directory import write

_DASHES = {"-": "none", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
_MAX_POINTS = 600
"""Points of a curve on the page. More points than pixels only slow the browser down."""


def write_page(
    path: Path,
    title: str,
    configured: Sequence[Configuration],
    metrics: Sequence[str],
    best: Configuration | None,
    warnings: Sequence[str],
    partitions: Sequence[Partition] = (),
    matrices: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the page with the data of all configurations."""
    here = files("fedsys.report")
    data = {
        "title": title,
        "warnings": list(warnings),
        "axes": {**AXES, "bytes_up": bytes_axis(run for c in configured for run in c.runs)},
        "metrics": [
            {"name": name, "log": metric(name).needs_log_axis(_values(configured, name))}
            for name in metrics
        ],
        "configurations": [
            _curves(index, c, metrics, c is best) for index, c in enumerate(configured)
        ],
        "finals": _finals(configured, metrics, best),
        "clients": {
            "head": ["", "metric", "all clients", "worst client", "best client"],
            "rows": [{"cells": cells} for cells in extremes(configured, metrics)],
        },
        "matrices": list(matrices),
        "differences": _differences(configured),
        "partitions": [
            {"label": label, "classes": [str(n) for n in names], "counts": counts.tolist()}
            for label, names, counts in partitions
        ],
        "waits": _waits(configured),
        "runs": [f"{c.label}, seed {run.seed}: {run.folder}" for c in configured for run in c.runs],
    }
    # "</script>" in a label must not end the script element that contains the data.
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "title": escape(title),
        "css": (here / "page.css").read_text(),
        "js": (here / "page.js").read_text(),
        "data": text,
    }
    # One pass, so that a placeholder inside the data of a run is not replaced.
    page = (here / "page.html").read_text()
    write(path, re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found.group(1)], page))


def _values(configured: Sequence[Configuration], metric: str) -> list[float]:
    return [point.mean for c in configured for point in c.curve(metric, "round")]


def _curves(index: int, c: Configuration, metrics: Sequence[str], best: bool) -> dict[str, Any]:
    look = style(index)
    curves = {metric: _rows([c.curve(metric, axis) for axis in AXES]) for metric in metrics}
    return {
        "label": c.label,
        "best": best,
        "color": look["color"],
        "dashes": _DASHES[look["linestyle"]],
        "curves": {metric: rows for metric, rows in curves.items() if rows},
        "clients": {
            metric: lines for metric in metrics if (lines := client_lines(c, metric, [*AXES]))
        },
    }


def _rows(by_axis: Sequence[Sequence[Point]]) -> list[list[float | None]]:
    """Return a row for each point: its position on each axis, mean, low, high and seeds."""
    rows = []
    for points in zip(*by_axis, strict=False):
        first = points[0]
        values = [*(point.x for point in points), first.mean, first.low, first.high, first.seeds]
        rows.append([value if isfinite(value) else None for value in values])
    every = max(1, len(rows) // _MAX_POINTS)
    last = rows[-1:] if len(rows) > 1 and (len(rows) - 1) % every else []
    return rows[::every] + last


def _finals(
    configured: Sequence[Configuration], metrics: Sequence[str], best: Configuration | None
) -> dict[str, Any]:
    """Return the table of last values; `best` marks the best cells of each column."""
    marks = [best_cells(configured, metric) for metric in metrics]
    rows = []
    for index, c in enumerate(configured):
        sent, rounds = c.finals("bytes_up"), c.finals("round")
        cells = [
            c.label,
            *(spread(c.finals(metric)) for metric in metrics),
            spread(rounds),
            human_bytes(max(sent)) + _codec(c) if sent else "-",
            spread(c.finals("seconds")),
            f"{len(c.runs)}",
        ]
        rows.append({"cells": cells, "best": [False, *(mark[index] for mark in marks)]})
    note = "Mean and standard deviation over the seeds."
    if best is not None and len(configured) > 1:
        note += f" Bold: best of the column. Best by {metrics[0]}: {best.label}."
    if any(_codec(c) for c in configured):
        note += f" With compression, bytes count the compressed messages; {UNCOMPRESSED}."
    head = ["", *metrics, "rounds", "sent per client", "seconds", "seeds"]
    return {"head": head, "rows": rows, "note": note}


def _codec(c: Configuration) -> str:
    codec = c.runs[0].compression
    return "" if codec == "none" else f" (after {codec}, simulated)"


def _differences(configured: Sequence[Configuration]) -> dict[str, Any]:
    keys = varied_settings([c.settings for c in configured])
    rows = [{"cells": [key, *(c.settings.get(key, "-") for c in configured)]} for key in keys]
    return {"head": ["setting", *(c.label for c in configured)], "rows": rows}


def _waits(configured: Sequence[Configuration]) -> list[dict[str, Any]]:
    return [
        {"label": f"{c.label}, seed {run.seed}", "seconds": waits}
        for c in configured
        for run in c.runs
        if len(waits := run.summary.get("seconds_waited_by_rank", [])) > 1
    ]
