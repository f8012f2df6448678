"""`python -m fedsys.report.table RUN...`: print the best setting of each method in markdown."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from fedsys.core.errors import FedsysError, InputError
from fedsys.core.metrics import metric as metric_named
from fedsys.report.configurations import (
    comparison_warnings,
    configurations,
    one_of_each_seed,
    repetition_warnings,
    spread,
    varied_settings,
)
from fedsys.report.runs import Run, read_run
from fedsys.training.console import UNCOMPRESSED


@dataclass(frozen=True)
class Row:
    """A method with one of its settings, over all seeds."""

    name: str
    settings: dict[str, str]
    runs: list[Run]

    def value(self, metric: str) -> float:
        """Return the mean of a metric over the seeds."""
        return mean(float(run.final[metric]) for run in self.runs)

    def spread(self, metric: str) -> str:
        """Format the mean and the standard deviation of a metric over the seeds."""
        return spread([run.final[metric] for run in self.runs])


def best_rows(runs: Iterable[Run], metric: str, by: str = "algorithm") -> list[Row]:
    """Return the best setting of each method, best method first."""
    groups: dict[tuple[str, Any], list[Run]] = defaultdict(list)
    for run in runs:
        row = run.choices[by]
        if isinstance(run.final.get(metric, []), list):
            known = ", ".join(n for n, value in run.final.items() if not isinstance(value, list))
            raise InputError(f"{row} reports no metric named {metric!r}; it reports {known}")
        groups[row, tuple(sorted(run.settings.items()))].append(run)
    sign = metric_named(metric).sign

    def order(row: Row) -> float:
        return sign * row.value(metric)

    rows = sorted(
        (Row(n, dict(s), one_of_each_seed(runs)[0]) for (n, s), runs in groups.items()), key=order
    )
    first = {row.name: row for row in reversed(rows)}
    return sorted(first.values(), key=order)


def table(runs: Sequence[Run], metrics: Sequence[str], by: str = "algorithm") -> str:
    """Return a markdown table: metrics, traffic and tuned settings of the best rows."""
    rows = best_rows(runs, metrics[0], by)
    head = [by, *metrics, "rounds", "MB up", "seeds", "settings tried", "best setting"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        settings = [run.settings for run in runs if run.choices[by] == row.name]
        tried = [dict(items) for items in {tuple(sorted(values.items())) for values in settings}]
        varied = sorted(varied_settings(tried))
        final, codec = row.runs[0].final, row.runs[0].compression
        lines.append(
            [
                row.name,
                *(row.spread(metric) for metric in metrics),
                _number(final, "round", "{:.0f}"),
                _number(final, "bytes_up", "{:.3g}", 1e-6) + ("" if codec == "none" else "*"),
                str(len(row.runs)),
                str(len(tried)),
                ", ".join(
                    f"{key.removeprefix('algorithm.')}={row.settings.get(key)}" for key in varied
                ),
            ]
        )
    note = f"\n\n\\* size of the compressed messages; {UNCOMPRESSED}"
    return markdown(lines) + (
        note if any(row.runs[0].compression != "none" for row in rows) else ""
    )


def _number(final: Mapping[str, float], name: str, form: str, unit: float = 1.0) -> str:
    return form.format(final[name] * unit) if name in final else "-"


def markdown(lines: Iterable[Iterable[str]]) -> str:
    """Format rows as a markdown table; the second row is the delimiter below the header."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def finished_runs(paths: Iterable[Path], by: str) -> Iterator[Run]:
    """Yield the finished runs in and below some folders."""
    for path in paths:
        found = sorted(summary.parent for summary in path.rglob("summary.json"))
        if not found:
            raise InputError(f"no finished run in {path}")
        for folder in found:
            run, warnings = read_run(folder)
            if run is None or not run.ended:
                raise InputError(warnings[0])
            if by not in run.choices:
                raise InputError(f"unknown group {by!r}; choose from {', '.join(run.choices)}")
            yield run


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; return 0, or 2 if the runs do not allow one."""
    parser = argparse.ArgumentParser(prog="python -m fedsys.report.table", description=__doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="run directory, or a folder of run directories",
    )
    parser.add_argument(
        "--metric", nargs="+", required=True, help="metrics to show; the first one ranks"
    )
    parser.add_argument(
        "--by", default="algorithm", help="configuration group whose options are the rows"
    )
    options = parser.parse_args(arguments)
    try:
        runs = list(finished_runs(options.runs, options.by))
        shown = table(runs, options.metric, options.by)
        configured = configurations(runs)
        for warning in repetition_warnings(configured) + comparison_warnings(configured):
            print(f"fedsys.report.table: {warning}", file=sys.stderr)
        print(shown)
    except FedsysError as error:
        print(f"fedsys.report.table: {error.message}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
