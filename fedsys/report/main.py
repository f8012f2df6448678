"""`fedsys-report RUN...`: a page, pictures and a table of runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedsys.errors import FedsysError, InputError
from fedsys.report.configurations import (
    Configuration,
    best,
    configurations,
    metrics,
    smaller_is_better,
    spread,
)
from fedsys.report.page import write_page
from fedsys.report.pictures import counts_of, draw_metric, draw_waits
from fedsys.report.runs import read_runs
from fedsys.runtime.deal_files import plot_counts


def report(
    paths: Sequence[Path], out: Path, wanted: str | None = None, pictures: bool = True
) -> list[Path]:
    """Write report.html, and a PNG and an SVG of each metric, to `out`; tells what it made."""
    runs, warnings = read_runs(paths)
    configured = configurations(runs)
    names = metrics(configured)
    if wanted is not None:
        if wanted not in names:
            raise InputError(f"no run reports {wanted!r}; there are {', '.join(names)}")
        names = [wanted, *(name for name in names if name != wanted)]
    warnings += [
        f"{c.label} reports no {names[0]}"
        for c in configured
        if names and not any(names[0] in record for run in c.runs for record in run.records)
    ]
    chosen = best(configured, names[0]) if names and len(configured) > 1 else None
    out.mkdir(parents=True, exist_ok=True)
    written = [out / "report.html"]
    write_page(written[0], _title(paths, configured), configured, names, chosen, warnings)
    if pictures:
        for name in names:
            written += draw_metric(configured, name, chosen, out / name)
        written += _more_pictures(configured, out)
    for warning in warnings:
        print(f"fedsys-report: {warning}", file=sys.stderr)
    _print_best(configured, names, chosen)
    return written


def _more_pictures(configured: Sequence[Configuration], out: Path) -> list[Path]:
    """Who got what, of the first run that dealt data; who waited, of runs with several ranks."""
    runs = [(f"{c.label}, seed {run.seed}", run) for c in configured for run in c.runs]
    written: list[Path] = []
    counted = next((counts for _, run in runs if (counts := counts_of(run)) is not None), None)
    if counted is not None:
        written.append(plot_counts(*counted, out / "partition.png"))
    waited = [
        (label, run)
        for label, run in runs
        if len(run.summary.get("seconds_waited_by_rank", [])) > 1
    ]
    return written + (draw_waits(waited, out / "waits") if waited else [])


def _title(paths: Sequence[Path], configured: Sequence[Configuration]) -> str:
    runs = sum(len(c.runs) for c in configured)
    count = "1 run" if runs == 1 else f"{runs} runs of {len(configured)} configurations"
    where = paths[0].resolve().name if len(paths) == 1 else f"{len(paths)} folders"
    return f"{where}: {count}"


def _print_best(
    configured: Sequence[Configuration], names: Sequence[str], chosen: Configuration | None
) -> None:
    if not names:
        return
    sign = 1 if smaller_is_better(names[0]) else -1

    def order(c: Configuration) -> float:
        finals = c.finals(names[0])
        return sign * sum(finals) / len(finals) if finals else float("inf")

    for c in sorted(configured, key=order):
        mark = "*" if c is chosen else " "
        print(f"{mark} {names[0]} {spread(c.finals(names[0]))}  {c.label}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a report; 2 if there is nothing to report."""
    parser = argparse.ArgumentParser(prog="fedsys-report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="or a folder of runs")
    parser.add_argument("--out", type=Path, help="the folder to write to (RUN/report)")
    parser.add_argument("--metric", help="the one that is shown first and decides on the best")
    parser.add_argument("--page-only", action="store_true", help="no PNG and SVG files")
    options = parser.parse_args(arguments)
    out = options.out or options.runs[0] / "report"
    try:
        for path in options.runs:
            if not path.is_dir():
                raise InputError(f"{path} is no folder; give run directories or a multirun folder")
        written = report(options.runs, out, options.metric, not options.page_only)
    except FedsysError as error:
        print(f"fedsys-report: {error.message}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"fedsys-report: cannot write to {out}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"page: {written[0]}")
    print(f"pictures: {len(written) - 1} in {out}")
    return 0
