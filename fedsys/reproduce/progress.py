"""Show finished, active and waiting runs: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from time import monotonic
from typing import Any

from typing_extensions import override

from fedsys.reproduce.pool import Outcome, Watcher
from fedsys.reproduce.sweep import PlannedRun
from fedsys.training.run_files import record_of

_MAX_ROWS = 24
"""Rows of the table that fit on a terminal; further finished runs are only counted."""


class Progress(Watcher):
    """Shows the progress of the runs of an entry.

    Args:
        title: title of the table.
        total: number of runs.
        metric: metric that is shown for each run.
    """

    def __init__(self, title: str, total: int, metric: str) -> None:
        self._title, self._total, self._metric = title, total, metric
        self._start_times: dict[PlannedRun, float] = {}
        self._done: list[tuple[PlannedRun, Outcome]] = []
        self._earlier = 0
        self._live: Any = None
        self._drawn = 0.0
        if sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            plain = Console(markup=False)  # "[...]" in a setting is not markup
            self._live = Live(self._table(), console=plain, auto_refresh=False)
            self._live.start()

    @override
    def started(self, run: PlannedRun) -> None:
        self._print_earlier()
        self._start_times[run] = monotonic()

    @override
    def finished(self, run: PlannedRun, outcome: Outcome, earlier: bool) -> None:
        self._start_times.pop(run, None)
        self._done.append((run, outcome))
        self._earlier += earlier
        if self._live is None and not earlier:
            text = outcome.message or self._value(run)
            print(
                f"[{len(self._done)}/{self._total}] {outcome.state} after "
                f"{outcome.seconds:.0f} s: {run.label}  {text}",
                flush=True,
            )

    @override
    def tick(self) -> None:
        if self._live is not None and monotonic() - self._drawn > 0.5:
            self._drawn = monotonic()
            self._live.update(self._table(), refresh=True)

    def close(self) -> None:
        """Draw the final state and release the terminal."""
        self._print_earlier()
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    def _print_earlier(self) -> None:
        if self._live is None and self._earlier:
            print(f"{self._earlier} of {self._total} runs were already finished", flush=True)
            self._earlier = 0

    def _table(self) -> Any:
        from rich.table import Table

        table = Table("run", "state", self._metric, "seconds", title=self._title, box=None)
        room = max(0, _MAX_ROWS - len(self._start_times))
        if len(self._done) > room:
            table.add_row(f"... {len(self._done) - room} more", "finished", "", "")
        for run, outcome in self._done[len(self._done) - room :] if room else []:
            table.add_row(run.label, outcome.state, self._value(run), f"{outcome.seconds:.0f}")
        for run, start in self._start_times.items():
            table.add_row(run.label, _state(run), self._value(run), f"{monotonic() - start:.0f}")
        waiting = self._total - len(self._done) - len(self._start_times)
        if waiting:
            table.add_row(f"{waiting} more", "waiting", "", "")
        return table

    def _value(self, run: PlannedRun) -> str:
        record = _last(run)
        return f"{record[self._metric]:.4g}" if self._metric in record else ""


def _state(run: PlannedRun) -> str:
    record = _last(run)
    return f"round {record['round']:.0f}" if "round" in record else "starting"


def _last(run: PlannedRun) -> dict[str, float]:
    """Return the last record of metrics.jsonl; empty if there is none."""
    with suppress(OSError, ValueError, IndexError, RecursionError):
        with (run.folder / "metrics.jsonl").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 4096))
            line = file.read().decode(errors="replace").rstrip("\n").rpartition("\n")[2]
        return record_of(json.loads(line))
    return {}
