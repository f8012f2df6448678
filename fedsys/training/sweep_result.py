"""The result of a sweep: its runs, grouped by setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from statistics import mean, stdev
from typing import Any

from typing_extensions import override

from fedsys.core.algorithm import Algorithm
from fedsys.core.errors import FedsysError, InputError
from fedsys.core.metrics import Record, headline, metrics_of
from fedsys.core.metrics import metric as metric_named
from fedsys.training.frames import frame
from fedsys.training.result import Result


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep."""

    name: str
    """The name of the algorithm."""
    numbers: dict[str, Any]
    """The hyperparameters that the sweep has chosen."""
    seed: int
    algorithm: Algorithm[Any, Any]
    """The algorithm with all hyperparameters that were used."""
    records: list[Record]
    """The records; up to its last finite one for a run that diverged."""
    result: Result | None
    """The result, or None for a run that ended with an error."""
    error: FedsysError | None
    """Why the run ended early; a `NonFiniteError` if it diverged."""

    @property
    def final(self) -> Record:
        """The last record; empty if there is none."""
        return self.records[-1] if self.records else {}


@dataclass(frozen=True)
class SweepSetting:
    """The runs of an algorithm with the same hyperparameters, one for each seed."""

    name: str
    numbers: dict[str, Any]
    runs: list[SweepRun]

    @property
    def failed(self) -> int:
        """The number of runs that diverged or ended with another error."""
        return sum(run.error is not None for run in self.runs)

    def finals(self, metric: str) -> list[float]:
        """Return the last values of a metric, one for each seed whose run ended well."""
        finals = [run.final.get(metric) for run in self.runs if not run.error]
        return [value for value in finals if isinstance(value, int | float)]

    def mean(self, metric: str) -> float | None:
        """Return the mean over the seeds; None if a seed failed, which would bias it."""
        values = self.finals(metric)
        return mean(values) if values and len(values) == len(self.runs) else None

    @property
    def label(self) -> str:
        """The algorithm and its numbers as text."""
        return setting_label(self.name, self.numbers)


@dataclass(frozen=True, repr=False)
class SweepResult:
    """The runs of a sweep, in the order of algorithms, values and seeds."""

    runs: list[SweepRun]

    @property
    def settings(self) -> list[SweepSetting]:
        """The runs by algorithm and hyperparameters."""
        found: dict[Any, SweepSetting] = {}
        for run in self.runs:
            key = run.name, *run.numbers.items()
            found.setdefault(key, SweepSetting(run.name, run.numbers, [])).runs.append(run)
        return list(found.values())

    @property
    def metric(self) -> str:
        """The most informative metric of the runs."""
        return headline(next((run.final for run in self.runs if run.final), {}))

    def best(self, metric: str | None = None, name: str | None = None) -> SweepSetting:
        """Return the setting with the best mean of a metric's last values.

        Args:
            metric: the metric; by default the most informative one.
            name: the algorithm; by default the best of all.
        """
        wanted = metric or self.metric
        sign = metric_named(wanted).sign
        ranked = []
        for setting in self.settings:
            value = setting.mean(wanted)
            if name in (None, setting.name) and value is not None and isfinite(value):
                ranked.append((sign * value, setting))
        if not ranked:
            known = sorted({one for run in self.runs for one in metrics_of(run.final)})
            of = f" of {name}" if name else ""
            raise InputError(
                f"sweep: no setting{of} has a finite {wanted} for every seed; the metrics are "
                f"{', '.join(known) or 'none'}"
            )
        return min(ranked, key=lambda pair: pair[0])[1]

    def frame(self) -> Any:
        """Return all records as a pandas DataFrame, with columns for algorithm, numbers and seed.

        Requires pandas.
        """
        rows = (
            {"algorithm": run.name, **run.numbers, "seed": run.seed, **record}
            for run in self.runs
            for record in run.records
        )
        return frame(rows, f"{type(self).__name__}.runs")

    @override
    def __repr__(self) -> str:
        metric = self.metric
        rows = [("setting", "seeds", metric, "failed")]
        for setting in self.settings:
            values = setting.finals(metric)
            text = f"{mean(values):.4g}" if values else "-"
            if len(values) > 1 and all(map(isfinite, values)):
                text += f" ± {stdev(values):.1g}"
            rows.append((setting.label, str(len(setting.runs)), text, str(setting.failed or "")))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        padded = (zip(row, widths, strict=True) for row in rows)
        return "\n".join("  ".join(cell.ljust(n) for cell, n in row).rstrip() for row in padded)


def setting_label(name: str, numbers: Mapping[str, Any]) -> str:
    """Return the name of an algorithm and its numbers as text."""
    listed = ", ".join(f"{key}={_text(value)}" for key, value in numbers.items())
    return f"{name} ({listed})" if listed else name


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
