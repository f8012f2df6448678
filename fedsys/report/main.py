"""`fedsys-report RUN...`: write an HTML page and figures that compare runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedsys.core.errors import FedsysError, InputError, StorageError, print_command_error
from fedsys.core.metrics import metric
from fedsys.report.clients import matrices
from fedsys.report.configurations import (
    Configuration,
    best,
    comparison_warnings,
    configurations,
    metrics,
    repetition_warnings,
    spread,
)
from fedsys.report.figures import draw_metric, draw_waits
from fedsys.report.page import write_page
from fedsys.report.partitions import partitions_of
from fedsys.report.runs import read_runs
from fedsys.training.file_names import file_stems
from fedsys.training.partition_files import plot_counts

_RESERVED_STEMS = ("report", "partition", "waits")


def report(
    paths: Sequence[Path], out: Path, first_metric: str | None = None, figures: bool = True
) -> list[Path]:
    """Write report.html, and a PNG and an SVG for each metric, to `out`; return their paths."""
    runs, warnings = read_runs(paths)
    configured = configurations(runs)
    names = metrics(configured)
    if first_metric is not None:
        if first_metric not in names:
            raise InputError(f"no run reports {first_metric!r}; there are {', '.join(names)}")
        names = [first_metric, *(name for name in names if name != first_metric)]
    warnings += [
        f"{c.label} reports no {names[0]}"
        for c in configured
        if names and not any(names[0] in record for run in c.runs for record in run.records)
    ]
    warnings += repetition_warnings(configured) + comparison_warnings(configured)
    partitions, unread = partitions_of(configured)
    judged, not_judged = matrices(configured)
    warnings += unread + not_judged
    chosen = best(configured, names[0]) if names and len(configured) > 1 else None
    out.mkdir(parents=True, exist_ok=True)
    written = [out / "report.html"]
    title = _title(paths, configured)
    write_page(written[0], title, configured, names, chosen, warnings, partitions, judged)
    if figures:
        # Metric names come from the run directories and must not be used as paths.
        for name, stem in file_stems(names, _RESERVED_STEMS).items():
            written += draw_metric(configured, name, chosen, out / stem)
        if partitions:
            _, classes, counts = partitions[0]
            written.append(plot_counts(classes, counts, out / "partition.png"))
        written += _draw_waits(configured, out)
    for warning in warnings:
        print(f"fedsys-report: {' '.join(warning.split())}", file=sys.stderr)
    _print_best(configured, names, chosen)
    return written


def _draw_waits(configured: Sequence[Configuration], out: Path) -> list[Path]:
    """Draw the waiting times of the runs with several ranks."""
    waited = [
        (f"{c.label}, seed {run.seed}", run)
        for c in configured
        for run in c.runs
        if len(run.summary.get("seconds_waited_by_rank", [])) > 1
    ]
    return draw_waits(waited, out / "waits") if waited else []


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
    sign = metric(names[0]).sign

    def order(c: Configuration) -> float:
        finals = c.finals(names[0])
        return sign * sum(finals) / len(finals) if finals else float("inf")

    for c in sorted(configured, key=order):
        mark = "*" if c is chosen else " "
        print(f"{mark} {names[0]} {spread(c.finals(names[0]))}  {c.label}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a report; return 0, or 2 if there is nothing to report."""
    parser = argparse.ArgumentParser(prog="fedsys-report", description=__doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="run directory, or a folder of run directories",
    )
    parser.add_argument("--out", type=Path, help="folder to write to (default: RUN/report)")
    parser.add_argument("--metric", help="metric that is shown first and ranks the configurations")
    parser.add_argument("--page-only", action="store_true", help="write no PNG and SVG files")
    options = parser.parse_args(arguments)
    out = options.out or options.runs[0] / "report"
    try:
        for path in options.runs:
            if not path.is_dir():
                raise InputError(
                    f"{path} is not a folder; pass run directories or a multirun folder"
                )
        written = report(options.runs, out, options.metric, not options.page_only)
    except FedsysError as error:
        return print_command_error("fedsys-report", error)
    except OSError as error:
        what, remedy = f"cannot write to {out}", "choose another folder with --out"
        return print_command_error("fedsys-report", StorageError.of(error, what, remedy))
    except Exception as error:
        return print_command_error("fedsys-report", error)
    print(f"page: {written[0]}")
    print(f"figures: {len(written) - 1} files in {out}")
    return 0
