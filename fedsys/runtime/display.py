"""What a person sees, on the first rank only."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

Record = dict[str, float]

HEADLINES = (
    "test_auc", "test_accuracy", "test_accuracy_perturbed", "relative_error", "gap",
    "operator_norm", "train_loss",
)  # fmt: skip
_SECONDS_BETWEEN_LINES = 2.0
_MOST_RANKS_SHOWN = 8
_BOOKKEEPING = {
    "step", "round", "exchanges", "bytes_up", "bytes_down", "bytes_control",
    "seconds", "seconds_waited", "dropped",
}  # fmt: skip


def metrics_of(record: Record) -> dict[str, float]:
    """The problem's metrics in a record."""
    return {name: value for name, value in record.items() if name not in _BOOKKEEPING}


def headline(record: Record) -> str:
    """The name of the metric that tells most."""
    return next((name for name in HEADLINES if name in record), "drift")


def human_bytes(count: float) -> str:
    """1.5 MB instead of 1500000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def theory_lines(summary: dict[str, Any]) -> list[str]:
    """The numbers that the theory chose, what they came from, and its bound."""
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
    if bound := theory.get("bound"):
        lines.append(
            f"  bound: average_gap {_short(bound['average_gap'])} <= {_short(bound['at_most'])}"
        )
    return lines


def waiting_lines(summary: dict[str, Any]) -> list[str]:
    """How long each rank waited for the others: who waits least is who they wait for."""
    waited: list[float] = summary["seconds_waited_by_rank"]
    if len(waited) == 1:
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
        title: what is running.
        unit: "round" or "step", whichever the length of the run was given in.
        total: how many of them.
    """

    def __init__(self, title: str, unit: str, total: int) -> None:
        self._unit, self._total = unit, total
        self._spoke = monotonic()
        self._first: tuple[int, float] | None = None
        self._bar: Progress | None = None
        print(title, flush=True)
        if sys.stdout.isatty():
            self._bar, self._task = _progress_bar(total)

    def record(self, record: Record) -> None:
        """Show how far it is."""
        name = headline(record)
        text = f"{name} {record[name]:.4g}  sent {human_bytes(record['bytes_up'])} per client"
        done = int(record[self._unit])
        # Counted from the first record: what comes before it is imports and start-up.
        self._first = self._first or (done, monotonic())
        if self._bar is not None:
            self._bar.update(self._task, completed=done, text=text)
        elif done in (0, self._total) or monotonic() - self._spoke > _SECONDS_BETWEEN_LINES:
            self._spoke = monotonic()
            print(f"{self._unit} {done}/{self._total}  {text}{self._remaining(done)}", flush=True)

    def finish(self, summary: dict[str, Any], files: dict[str, Path]) -> None:
        """The table of final values, and where everything is."""
        from rich.console import Console
        from rich.table import Table

        if self._bar is not None:
            self._bar.stop()
        table = Table("", "final", box=None, pad_edge=False)
        for name, value in summary["final"].items():
            text = human_bytes(value) if name.startswith("bytes") else f"{value:.6g}"
            table.add_row(name, text)
        console = Console(highlight=False, soft_wrap=True)
        console.print(table)
        for line in (*theory_lines(summary), *waiting_lines(summary)):
            print(line)
        for what, path in files.items():
            print(f"{what}: {path}", flush=True)

    def abandon(self) -> None:
        """Leave the terminal as it was; the run has failed."""
        if self._bar is not None:
            self._bar.stop()

    def _remaining(self, done: int) -> str:
        first, began = self._first or (done, monotonic())
        if not first < done < self._total:
            return ""
        seconds = (monotonic() - began) / (done - first) * (self._total - done)
        return f"  {seconds:.0f} s left"


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
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns)
    bar.start()
    return bar, bar.add_task("", total=total, text="")
