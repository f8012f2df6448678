"""The console output of a run, on the first rank: progress, results and warnings."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from fedsys.core.metrics import Record, headline
from fedsys.training.option_names import COMMAND_LINE, OptionNames

if TYPE_CHECKING:
    from rich.progress import Progress

UNCOMPRESSED = "sums travel uncompressed"
"""With compression, `bytes_up` counts simulated messages: the transport sends full vectors."""
_SECONDS_BETWEEN_LINES = 2.0
_MOST_RANKS_SHOWN = 8


def sent(count: float, compression: str) -> str:
    """Return the bytes that a client sent, or would send with a simulated compression."""
    if compression == "none":
        return f"sent {human_bytes(count)} per client"
    return f"would send {human_bytes(count)} per client ({UNCOMPRESSED})"


def human_bytes(count: float) -> str:
    """Return a number of bytes as text: 1.5 MB for 1500000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def theory_lines(summary: dict[str, Any]) -> list[str]:
    """Return the hyperparameters from the theory, the constants behind them, and the bound."""
    theory = summary.get("theory")
    if not theory:
        return []
    samples = "samples_" if theory["finite_sum"] else ""
    used = f"ell_{samples}{summary['hyperparameters'].get('cocoercivity')}"
    values = ", ".join(f"{n}={_short(v)}" for n, v in summary["hyperparameters"].items())
    constants = ", ".join(
        f"{n}={_short(v)}{' (used)' if n == used else ''}" for n, v in theory["constants"].items()
    )
    lines = [f"theory: {values}", f"  from {constants}"]
    if source := theory.get("source"):
        lines.append(f"  constants by {source}")
    for kind, metric in (("bound", "average_gap"), ("lyapunov", "lyapunov")):
        if bound := theory.get(kind):
            verdict = "holds" if bound[metric] <= bound["at_most"] else "VIOLATED"
            lines.append(
                f"  bound of the theorem, in expectation: {metric} at most "
                f"{_short(bound['at_most'])}; measured {_short(bound[metric])}: {verdict}"
            )
    return lines


def ending_lines(summary: dict[str, Any]) -> list[str]:
    """Return why a run stopped early, and which record is kept if it is the best one."""
    kept = dict(summary.get("kept", {}))
    where = f"round {kept.pop('round', 0):.0f}, step {kept.pop('step', 0):.0f}"
    lines = [f"kept: the best record, of {where}: {n} {v:.6g}" for n, v in kept.items()]
    return [*([summary["stopped"]] if summary.get("stopped") else []), *lines]


def waiting_lines(summary: dict[str, Any]) -> list[str]:
    """Return how long each rank waited for the others; the slowest rank waits least."""
    waited: list[float] = summary.get("seconds_waited_by_rank", [])
    if len(waited) < 2:
        return []
    order = sorted(range(len(waited)), key=waited.__getitem__)
    shown = order if len(order) <= _MOST_RANKS_SHOWN else [*order[:4], *order[-4:]]
    times = ", ".join(f"rank {rank} {waited[rank]:.3g} s" for rank in shown)
    return [f"waited: {times} (the first is the one the others wait for)"]


def _short(value: Any) -> str:
    if isinstance(value, dict) and "scale" in value:
        power = "" if value["power"] == 1 else f"^{value['power']:.3g}"
        return f"{value['scale']:.4g}/(t+{value['offset']:.4g}){power}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Display:
    """A progress bar on a terminal, plain lines elsewhere, and a table at the end.

    Args:
        title: printed at the start.
        unit: "round" or "step": what the length of the run is given in.
        total: the length of the run in that unit.
        compression: the compression of what clients send: "none" or the name of a codec.
    """

    def __init__(self, title: str, unit: str, total: int, compression: str = "none") -> None:
        self._unit, self._total, self._compression = unit, total, compression
        self._last_line = monotonic()
        self._first: tuple[int, float] | None = None
        self._bar: Progress | None = None
        print(title, flush=True)
        if sys.stdout.isatty():
            self._bar, self._task = _progress_bar(total)

    def record(self, record: Record) -> None:
        """Show the progress and the headline metric."""
        name = headline(record)
        text = f"{name} {record[name]:.4g}  {sent(record['bytes_up'], self._compression)}"
        done = int(record[self._unit])
        # The remaining time is estimated from the first record on: imports and start-up precede it.
        self._first = self._first or (done, monotonic())
        if self._bar is not None:
            self._bar.update(self._task, completed=done, text=text)
        elif done in (0, self._total) or monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = monotonic()
            print(f"{self._unit} {done}/{self._total}  {text}{self._remaining(done)}", flush=True)

    def finish(
        self, summary: dict[str, Any], files: dict[str, Path], remarks: Sequence[str] = ()
    ) -> None:
        """Print the table of final values, the remarks of the problem, and the paths."""
        if self._bar is not None:
            self._bar.stop()
        _print_results(summary, files, self._compression, remarks)

    def abandon(self) -> None:
        """Stop the progress bar, which restores the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def _remaining(self, done: int) -> str:
        first, start = self._first or (done, monotonic())
        if not first < done < self._total:
            return ""
        seconds = (monotonic() - start) / (done - first) * (self._total - done)
        return f"  {seconds:.0f} s left"


def show_finished(
    title: str,
    summary: dict[str, Any],
    files: dict[str, Path],
    compression: str,
    options: OptionNames = COMMAND_LINE,
) -> None:
    """Print that a run is already finished, and its results from the run directory."""
    final = summary["final"]
    print(title)
    print(
        f"this run is finished (step {final['step']:.0f}, round {final['round']:.0f}); nothing was "
        "run or written; a larger rounds= continues it, another "
        f"{options.directory} starts a new run"
    )
    _print_results(summary, {n: path for n, path in files.items() if path.exists()}, compression)


def _print_results(
    summary: dict[str, Any],
    files: dict[str, Path],
    compression: str,
    remarks: Sequence[str] = (),
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "final", box=None, pad_edge=False)
    for name, value in summary["final"].items():
        if isinstance(value, list):
            text = client_range(value)
        else:
            text = human_bytes(value) if name.startswith("bytes") else f"{value:.6g}"
        if name == "bytes_up" and compression != "none":
            text += f" ({compression}; {UNCOMPRESSED})"
        table.add_row(name, text)
    Console(highlight=False, soft_wrap=True, markup=False).print(table)
    for line in remarks:
        print(line)
    with suppress(LookupError, TypeError, ValueError):  # a summary that was edited by hand
        for line in (*theory_lines(summary), *ending_lines(summary)):
            print(line)
    warnings = [f"warning: {line}" for line in summary.get("warnings", [])]
    for line in (*waiting_lines(summary), *warnings):
        print(line)
    for what, path in files.items():
        print(f"{what}: {path}", flush=True)


def client_range(values: Sequence[float | None]) -> str:
    """Return the lowest and the highest value of the clients, with their numbers."""
    known = [(value, client) for client, value in enumerate(values) if value is not None]
    if not known:
        return f"undefined for all {len(values)} clients"
    (low, first), (high, last) = min(known), max(known)
    missing = len(values) - len(known)
    undefined = f", {missing} undefined" if missing else ""
    return f"{low:.6g} (client {first}) to {high:.6g} (client {last}){undefined}"


def _progress_bar(total: int) -> tuple[Progress, Any]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns)
    bar.start()
    return bar, bar.add_task("", total=total, text="")
