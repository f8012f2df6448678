"""`fedsys-reproduce NAME|list|all|write [override ...]`: reproduce a figure or table."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from fedsys.core.errors import FedsysError, InputError, StorageError, print_command_error
from fedsys.reproduce.entries import Entry, entries, entry_named, papers
from fedsys.reproduce.figure import draw
from fedsys.reproduce.lines import lines_of
from fedsys.reproduce.pool import OUTPUT, run_all
from fedsys.reproduce.progress import Progress
from fedsys.reproduce.results import EntryResult, result_of, table, verdict_lines
from fedsys.reproduce.sweep import count_runs, planned_runs, scale_of
from fedsys.reproduce.writing import publish
from fedsys.system.provenance import cores
from fedsys.training.run_directory import write

RESULT = "result.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, 1 (a run failed), 2 (invalid settings) or 130 (interrupted)."""
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
        return print_command_error("fedsys-reproduce", error)
    except OSError as error:
        what = f"cannot write {error.filename or 'a file'}"
        return print_command_error("fedsys-reproduce", StorageError.of(error, what, "make room"))
    except Exception as error:
        return print_command_error("fedsys-reproduce", error)
    except KeyboardInterrupt:
        print("fedsys-reproduce: interrupted; run the same command to continue", file=sys.stderr)
        return 130


def folder_of(name: str, overrides: Sequence[str], root: Path) -> Path:
    """Return the folder of an entry; each set of overrides has a folder of its own."""
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
        outcomes = run_all(runs, jobs, ranks, progress, not options.separate)
    finally:
        progress.close()
    lines = lines_of(entry, runs, outcomes)
    result = result_of(name, entry, scale, overrides, lines, outcomes)
    figures = draw(entry, lines, folder / "figure")
    write(folder / "table.md", table(result) + "\n")
    result.save(folder / RESULT)
    print(table(result))
    for line in verdict_lines(result):
        print(line)
    print(f"figure: {figures[0]}")
    print(f"table: {folder / 'table.md'}", flush=True)
    for missing in result.missing:
        print(f"fedsys-reproduce: {missing} (see {OUTPUT} in its folder)", file=sys.stderr)
    return 1 if result.missing else 0


def _ranks(scale: str) -> int:
    """Return the default number of ranks: one per GPU of this host at scale=paper, else 1."""
    return max(1, torch.cuda.device_count()) if scale == "paper" else 1


def _list(overrides: Sequence[str], root: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table("name", "what", "runs", "result", box=None, pad_edge=False)
    for paper in papers().values():
        for name, entry in paper.entries.items():
            path = folder_of(name, overrides, root) / RESULT
            status = _status(path) if path.is_file() else "not run yet"
            runs = str(count_runs(entry, overrides))
            shown.add_row(name, f"{entry.what}: {entry.title}", runs, status)
    Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty()).print(shown)


def _status(path: Path) -> str:
    try:
        result = EntryResult.load(path)
    except InputError:
        return f"{path} cannot be read"
    held = sum(verdict.holds for verdict in result.verdicts)
    return f"{held} of {len(result.verdicts)} claims hold, {result.date}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedsys-reproduce",
        description=__doc__,
        epilog="Overrides apply to every run, as for fedsys: scale=paper, seed=0,1,2, "
        "algorithm=proxskip,local_seg, dataset.root=... . Finished runs are not repeated.",
    )
    parser.add_argument(
        "name", metavar="NAME|list|all|write", help="write updates the pages in papers/"
    )
    parser.add_argument("overrides", nargs="*", metavar="override", help="name=value")
    parser.add_argument("--jobs", type=int, help="parallel runs (default: cores / ranks)")
    parser.add_argument("--ranks", type=int, help="processes per run (1; scale=paper: GPUs)")
    parser.add_argument(
        "--separate", action="store_true", help="one process per run, also for games"
    )
    parser.add_argument("--root", type=Path, default=Path("runs/reproduce"), help="%(default)s")
    parser.add_argument("--into", type=Path, default=Path("papers"), help="for write: %(default)s")
    options = parser.parse_intermixed_args(arguments)
    for name in ("jobs", "ranks"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    for override in options.overrides:
        if "=" not in override:
            parser.error(f"{override!r} is not an override; use name=value")
    return options
