"""Metrics of each client in a report: thin curves, the worst and the best client, the matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from fedsys.core.metrics import client_metrics_of
from fedsys.core.metrics import metric as metric_named
from fedsys.report.configurations import Configuration
from fedsys.report.runs import Run
from fedsys.training.curves import MOST_CLIENTS
from fedsys.training.run_files import UnreadableError, is_number, read_object

_MAX_POINTS = 200
"""Points of the thin curve of a client; there may be 64 of them for each configuration."""
_MAX_CELLS = 10_000
"""Cells of a matrix on the page; a larger one is left to the reader of cross_site.json."""

Line = list[list[float]]
"""Positions on an axis, or on several, and the value after them."""


def client_lines(c: Configuration, metric: str, axes: Sequence[str]) -> list[Line]:
    """Return a curve of each of the first 64 clients of a configuration, of its first seed."""
    records = [r for r in c.runs[0].records if metric in client_metrics_of(r)]
    records = [r for r in records if all(axis in r for axis in axes)]
    every = max(1, len(records) // _MAX_POINTS)
    lines: list[Line] = []
    for record in (*records[:-1:every], *records[-1:]):
        values = client_metrics_of(record)[metric][:MOST_CLIENTS]
        lines += [[] for _ in values[len(lines) :]]
        for line, value in zip(lines, values, strict=False):
            if value is not None and isfinite(value):
                line.append([*(float(record[axis]) for axis in axes), float(value)])
    return lines


def extremes(configured: Iterable[Configuration], metrics: Sequence[str]) -> list[list[str]]:
    """Return the worst and the best client of each run, by the last value of each metric.

    A row has the run, the metric, its value for all clients together, and the two clients with
    theirs.
    """
    rows = []
    for c in configured:
        for run in c.runs:
            each = client_metrics_of(run.final)
            for metric in (name for name in metrics if name in each):
                ranked = _ranked(metric, each[metric])
                if ranked:
                    together = run.final.get(metric)
                    common = "-" if together is None else f"{together:.4g}"
                    name = f"{c.label}, seed {run.seed}"
                    rows.append([name, metric, common, _named(ranked[-1]), _named(ranked[0])])
    return rows


def _ranked(metric: str, values: Sequence[float | None]) -> list[tuple[float, int]]:
    """Return the values with the numbers of their clients, the best first."""
    known = [(v, client) for client, v in enumerate(values) if v is not None and isfinite(v)]
    sign = metric_named(metric).sign
    return sorted(known, key=lambda pair: (sign * pair[0], pair[1]))


def _named(pair: tuple[float, int]) -> str:
    return f"{pair[0]:.4g} (client {pair[1]})"


def matrices(configured: Iterable[Configuration]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the site-by-site matrix of each run that has one, and a warning for each bad file."""
    found, warnings = [], []
    for c in configured:
        for run in c.runs:
            try:
                content = read_cross_site(run.folder / "cross_site.json")
            except UnreadableError as error:
                warnings.append(f"{error}; it is ignored")
                continue
            if content is not None:
                found.append(_matrix(f"{c.label}, seed {run.seed}", run, content))
    return found, warnings


def _matrix(label: str, run: Run, content: dict[str, Any]) -> dict[str, Any]:
    rows = zip(content["models"], content["values"], strict=True)
    texts = [
        [str(name), *("-" if value is None else f"{value:.4g}" for value in row)]
        for name, row in rows
    ]
    return {
        "label": f"{label}: {content['metric']} of each model (row) at each client (column)",
        "head": ["model", *(f"client {client}" for client in range(len(content["values"][0])))],
        "rows": texts,
    }


def read_cross_site(path: Path) -> dict[str, Any] | None:
    """Return the content of a cross_site.json; None if there is none, or if it is too large."""
    content = read_object(path)
    if content is None:
        return None
    models, values = content.get("models"), content.get("values") or []
    good = (
        isinstance(models, list)
        and isinstance(values, list)
        and len(models) == len(values) > 0
        and all(isinstance(name, str) for name in models)
        and isinstance(content.get("metric"), str)
        and all(isinstance(row, list) and len(row) == len(values[0]) for row in values)
        and all(value is None or is_number(value) for row in values for value in row)
    )
    if not good:
        raise UnreadableError(f"{path} cannot be read (not a matrix of models and clients)")
    return content if len(values) * len(values[0]) <= _MAX_CELLS else None
