"""`fedsys-reproduce NAME|list|all|write [override ...]`: a figure or table of the papers."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from fedsys.errors import FedsysError
from fedsys.reproduce.entries import Entry, entries, entry_named, papers
from fedsys.reproduce.figure import draw
from fedsys.reproduce.lines import lines_of
from fedsys.reproduce.pool import OUTPUT, run_all
from fedsys.reproduce.progress import Progress
from fedsys.reproduce.provenance import cores
from fedsys.reproduce.results import Result, result_of, table, verdict_lines
from fedsys.reproduce.sweep import count_runs, planned_runs, scale_of
from fedsys.reproduce.writing import publish
from fedsys.runtime.run_directory import write

RESULT = "result.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Reproduce; 0, 1 (a run failed), 2 (asked wrongly), 130 (interrupted)."""
    options = _parse(arguments)
    try:
        if options.name == "list":
            _list(options.overrides, options.root)
            return 0
        if options.name == "write":
            print(f"written: {publish(options.root, options.into)}")
            return 0
        names = list(entries()) if options.name == "all" else [options.name]
        codes = [_reproduce(name, entry_named(name), options) for name in names]
        return max(codes)
    except FedsysError as error:
        print(f"fedsys-reproduce: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("fedsys-reproduce: interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def folder_of(name: str, overrides: Sequence[str], root: Path) -> Path:
    """Where an entry is kept; with overrides it is another thing, and has another folder."""
    scale = scale_of(overrides)
    other = sorted(o for o in overrides if o != f"scale={scale}")
    mark = f"+{hashlib.sha256(' '.join(other).encode()).hexdigest()[:6]}" if other else ""
    return root / scale / f"{name}{mark}"


def _reproduce(name: str, entry: Entry, options: argparse.Namespace) -> int:
    overrides, scale = options.overrides, scale_of(options.overrides)
    folder = folder_of(name, overrides, options.root)
    runs = planned_runs(entry, overrides, folder / "runs")
    total = len({run.folder for run in runs})
    progress = Progress(f"{name}: {entry.what}, {entry.title}", total, entry.metrics[0])
    ranks = options.ranks or _ranks(scale)
    jobs = options.jobs or max(1, cores() // ranks)
    try:
        outcomes = run_all(runs, jobs, ranks, progress)
    finally:
        progress.close()
    lines = lines_of(entry, runs, outcomes)
    result = result_of(name, entry, scale, overrides, lines, outcomes)
    pictures = draw(entry, lines, folder / "figure")
    write(folder / "table.md", table(result) + "\n")
    result.save(folder / RESULT)
    print(table(result))
    for line in verdict_lines(result):
        print(line)
    print(f"figure: {pictures[0]}")
    print(f"table: {folder / 'table.md'}", flush=True)
    for missing in result.missing:
        print(f"fedsys-reproduce: {missing} (see {OUTPUT} there)", file=sys.stderr)
    return 1 if result.missing else 0


def _ranks(scale: str) -> int:
    """At the papers' size a run has the GPUs of this host, a rank each."""
    return max(1, torch.cuda.device_count()) if scale == "paper" else 1


def _list(overrides: Sequence[str], root: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table("name", "what", "runs", "result", box=None, pad_edge=False)
    for paper in papers().values():
        for name, entry in paper.entries.items():
            path = folder_of(name, overrides, root) / RESULT
            done = _said(Result.load(path)) if path.is_file() else "not run yet"
            runs = str(count_runs(entry, overrides))
            shown.add_row(name, f"{entry.what}: {entry.title}", runs, done)
    Console(highlight=False, soft_wrap=not sys.stdout.isatty()).print(shown)


def _said(result: Result) -> str:
    held = sum(verdict.holds for verdict in result.verdicts)
    return f"{held} of {len(result.verdicts)} claims hold, {result.date}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedsys-reproduce",
        description=__doc__,
        epilog="Overrides are those of fedsys, for every run: scale=paper, seed=0,1,2, "
        "algorithm=proxskip,local_seg, dataset.root=... . Finished runs are not run again.",
    )
    parser.add_argument("name", metavar="NAME|list|all|write", help="write: makes REPRODUCTION.md")
    parser.add_argument("overrides", nargs="*", metavar="override", help="name=value")
    parser.add_argument("--jobs", type=int, help="runs at a time (the cores, over the ranks)")
    parser.add_argument("--ranks", type=int, help="processes of a run (1; GPUs with scale=paper)")
    parser.add_argument("--root", type=Path, default=Path("runs/reproduce"), help="%(default)s")
    parser.add_argument("--into", type=Path, default=Path(), help="the folder `write` writes to")
    options = parser.parse_intermixed_args(arguments)
    for name in ("jobs", "ranks"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    for override in options.overrides:
        if "=" not in override:
            parser.error(f"{override!r} is no override; they look like name=value")
    return options
