"""Which runs are done, under way and waiting: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from time import monotonic
from typing import Any

from fedsys.reproduce.pool import Outcome
from fedsys.reproduce.sweep import PlannedRun

_ROWS = 24
"""What fits on a terminal; of more runs the finished ones are counted only."""


class Progress:
    """Tells of the runs of an entry.

    Args:
        title: what is made.
        total: how many runs there are.
        metric: the one that is shown of each.
    """

    def __init__(self, title: str, total: int, metric: str) -> None:
        self._title, self._total, self._metric = title, total, metric
        self._began: dict[PlannedRun, float] = {}
        self._done: list[tuple[PlannedRun, Outcome]] = []
        self._earlier = 0
        self._live: Any = None
        self._drawn = 0.0
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(self._table(), auto_refresh=False)
            self._live.start()

    def started(self, run: PlannedRun) -> None:
        """A process was started for it."""
        self._say_earlier()
        self._began[run] = monotonic()

    def finished(self, run: PlannedRun, outcome: Outcome, earlier: bool) -> None:
        """It has ended."""
        self._began.pop(run, None)
        self._done.append((run, outcome))
        self._earlier += earlier
        if self._live is None and not earlier:
            text = outcome.message or self._value(run)
            print(
                f"[{len(self._done)}/{self._total}] {outcome.state} after "
                f"{outcome.seconds:.0f} s: {run.label}  {text}",
                flush=True,
            )

    def tick(self) -> None:
        """Some time has passed."""
        if self._live is not None and monotonic() - self._drawn > 0.5:
            self._drawn = monotonic()
            self._live.update(self._table(), refresh=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._say_earlier()
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    def _say_earlier(self) -> None:
        if self._live is None and self._earlier:
            print(f"{self._earlier} of {self._total} runs were finished before", flush=True)
            self._earlier = 0

    def _table(self) -> Any:
        from rich.table import Table

        table = Table("run", "state", self._metric, "seconds", title=self._title, box=None)
        room = max(0, _ROWS - len(self._began))
        if len(self._done) > room:
            table.add_row(f"... {len(self._done) - room} more", "finished", "", "")
        for run, outcome in self._done[len(self._done) - room :] if room else []:
            table.add_row(run.label, outcome.state, self._value(run), f"{outcome.seconds:.0f}")
        for run, began in self._began.items():
            table.add_row(run.label, _where(run), self._value(run), f"{monotonic() - began:.0f}")
        waiting = self._total - len(self._done) - len(self._began)
        if waiting:
            table.add_row(f"{waiting} more", "waiting", "", "")
        return table

    def _value(self, run: PlannedRun) -> str:
        record = _last(run)
        return f"{record[self._metric]:.4g}" if self._metric in record else ""


def _where(run: PlannedRun) -> str:
    record = _last(run)
    return f"round {record['round']:.0f}" if "round" in record else "starting"


def _last(run: PlannedRun) -> dict[str, float]:
    """The last whole line of its metrics."""
    with suppress(OSError, ValueError, IndexError):
        with (run.folder / "metrics.jsonl").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 4096))
            line = file.read().decode(errors="replace").rstrip("\n").rpartition("\n")[2]
        record: dict[str, float] = json.loads(line)
        return record
    return {}
