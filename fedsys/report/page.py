"""One HTML page that needs nothing else: its script, its style and all its numbers are inside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from fedsys.report.configurations import AXES, Configuration, Point, spread, varied_settings
from fedsys.report.pictures import counts_of, is_logarithmic, style
from fedsys.runtime.display import human_bytes
from fedsys.runtime.run_directory import write

_DASHES = {"-": "none", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
_POINTS = 600
"""Of a curve on the page; more than there are pixels for only make it slow."""
_TABLES_UP_TO = 6


def write_page(
    path: Path,
    title: str,
    configured: Sequence[Configuration],
    metrics: Sequence[str],
    best: Configuration | None,
    warnings: Sequence[str],
) -> None:
    """Put the runs into the page and write it."""
    here = files("fedsys.report")
    data = {
        "title": title,
        "warnings": list(warnings),
        "axes": AXES,
        "metrics": [{"name": m, "log": is_logarithmic(m, _values(configured, m))} for m in metrics],
        "configurations": [
            _curves(index, c, metrics, c is best) for index, c in enumerate(configured)
        ],
        "finals": _finals(configured, metrics, best),
        "differences": _differences(configured),
        "partitions": _partitions(configured),
        "waits": _waits(configured),
        "runs": [f"{c.label}, seed {run.seed}: {run.folder}" for c in configured for run in c.runs],
    }
    # "</script>" in a label must not end the script that holds it.
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    page = (here / "page.html").read_text()
    for name, content in (
        ("title", title.replace("&", "&amp;").replace("<", "&lt;")),
        ("css", (here / "page.css").read_text()),
        ("js", (here / "page.js").read_text()),
        ("data", text),
    ):
        page = page.replace(f"{{{{{name}}}}}", content)
    write(path, page)


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
    }


def _rows(by_axis: Sequence[Sequence[Point]]) -> list[list[float | None]]:
    """A row for each point: its place on each axis, mean, low, high and seeds."""
    rows = []
    for places in zip(*by_axis, strict=False):
        point = places[0]
        values = [*(place.x for place in places), point.mean, point.low, point.high, point.seeds]
        rows.append([value if isfinite(value) else None for value in values])
    every = max(1, len(rows) // _POINTS)
    last = rows[-1:] if len(rows) > 1 and (len(rows) - 1) % every else []
    return rows[::every] + last


def _finals(
    configured: Sequence[Configuration], metrics: Sequence[str], best: Configuration | None
) -> dict[str, Any]:
    rows = []
    for c in configured:
        sent, rounds = c.finals("bytes_up"), c.finals("round")
        cells = [
            c.label,
            *(spread(c.finals(metric)) for metric in metrics),
            spread(rounds),
            human_bytes(max(sent)) if sent else "-",
            spread(c.finals("seconds")),
            f"{len(c.runs)}",
        ]
        rows.append({"cells": cells, "best": c is best})
    note = "Mean and standard deviation over the seeds."
    if best is not None and len(configured) > 1:
        note += f" Best by {metrics[0]}: {best.label}."
    head = ["", *metrics, "rounds", "sent by a client", "seconds", "seeds"]
    return {"head": head, "rows": rows, "note": note}


def _differences(configured: Sequence[Configuration]) -> dict[str, Any]:
    keys = varied_settings([c.settings for c in configured])
    rows = [{"cells": [key, *(c.settings.get(key, "-") for c in configured)]} for key in keys]
    return {"head": ["setting", *(c.label for c in configured)], "rows": rows}


def _partitions(configured: Sequence[Configuration]) -> list[dict[str, Any]]:
    """Each way to deal the data, once."""
    found: dict[str, dict[str, Any]] = {}
    for c in configured:
        for run in c.runs:
            counted = counts_of(run)
            if counted is not None and len(found) < _TABLES_UP_TO:
                names, counts = counted
                deal = {"classes": [str(name) for name in names], "counts": counts.tolist()}
                label = f"{c.label}, seed {run.seed}: {int(counts.sum()):,} training samples"
                found.setdefault(json.dumps(deal), {"label": label, **deal})
    return list(found.values())


def _waits(configured: Sequence[Configuration]) -> list[dict[str, Any]]:
    return [
        {"label": f"{c.label}, seed {run.seed}", "seconds": waits}
        for c in configured
        for run in c.runs
        if len(waits := run.summary.get("seconds_waited_by_rank", [])) > 1
    ]
