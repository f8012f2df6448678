"""Runs that differ in their seed only are one configuration: its curves, its label, the best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import mean, stdev

from fedsys.report.runs import Record, Run
from fedsys.runtime.display import HEADLINES, metrics_of

AXES = {
    "round": "communication rounds",
    "step": "steps of a client",
    "bytes_up": "bytes sent by a client",
    "seconds": "seconds of training",
}
SMALLER_IS_BETTER = ("loss", "error", "gap", "norm", "distance", "eqopp", "eqodds", "drift")
_GROUPS = ("algorithm", "problem", "dataset", "model", "partition")


@dataclass(frozen=True)
class Point:
    """A place on a curve: the mean over the seeds that got there, and their band."""

    x: float
    mean: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Configuration:
    """Settings, and a run for each seed."""

    label: str
    settings: dict[str, str]
    runs: list[Run]

    def finals(self, metric: str) -> list[float]:
        """The last value of each seed that has the metric."""
        return [run.final[metric] for run in self.runs if metric in run.final]

    def curve(self, metric: str, axis: str) -> list[Point]:
        """Mean, and one standard deviation to both sides, but no further than the seeds reach.

        Seeds meet at their rounds, as what a method sent or how long it took varies.
        """
        by_round: dict[float, list[Record]] = defaultdict(list)
        for run in self.runs:
            for record in run.records:
                if metric in record and axis in record and "round" in record:
                    by_round[record["round"]].append(record)
        return [_point(records, metric, axis) for _, records in sorted(by_round.items())]


def _point(records: Sequence[Record], metric: str, axis: str) -> Point:
    values = [record[metric] for record in records]
    middle = mean(values)
    away = deviation(values)
    low, high = max(middle - away, min(values)), min(middle + away, max(values))
    return Point(mean(record[axis] for record in records), middle, low, high, len(values))


def configurations(runs: Iterable[Run]) -> list[Configuration]:
    """The runs by their settings, each with the shortest label that tells it from the others."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = defaultdict(list)
    for run in runs:
        # A run without settings cannot be known to be the same as another.
        key = tuple(sorted(run.settings.items())) or (("", str(run.folder)),)
        groups[key].append(run)
    members = list(groups.values())
    labels = _labels([_choices(runs) for runs in members], [runs[0] for runs in members])
    return [
        Configuration(label, runs[0].settings, sorted(runs, key=lambda run: run.seed))
        for label, runs in zip(labels, members, strict=True)
    ]


def _choices(runs: Sequence[Run]) -> dict[str, str]:
    """Those of a seed that ended, if there is one."""
    return max(runs, key=lambda run: run.ended).choices


def _labels(choices: Sequence[dict[str, str]], runs: Sequence[Run]) -> list[str]:
    varied_groups = [
        # What a run that broke off does not know is no difference.
        group
        for group in _GROUPS
        if len({chosen[group] for chosen in choices if group in chosen}) > 1
    ] or ["algorithm"]
    names = [
        ", ".join(chosen[group] for group in varied_groups if group in chosen)
        or runs[i].folder.name
        for i, chosen in enumerate(choices)
    ]
    labels = []
    for name, run in zip(names, runs, strict=True):
        alike = [other for n, other in zip(names, runs, strict=True) if n == name]
        keys = varied_settings([other.settings for other in alike])
        details = [f"{key.removeprefix('algorithm.')}={run.settings.get(key, '')}" for key in keys]
        labels.append(", ".join([name, *details]))
    twice = {label for label in labels if labels.count(label) > 1}
    return [
        f"{label} ({run.folder.name})" if label in twice else label
        for label, run in zip(labels, runs, strict=True)
    ]


def varied_settings(all_settings: Sequence[dict[str, str]]) -> list[str]:
    """The settings that are not the same in all of these."""
    keys = dict.fromkeys(key for settings in all_settings for key in settings)
    return [key for key in keys if len({settings.get(key) for settings in all_settings}) > 1]


def metrics(configured: Iterable[Configuration]) -> list[str]:
    """Every metric that some run reports, the most telling first."""
    names = {
        name
        for c in configured
        for r in c.runs
        for record in r.records
        for name in metrics_of(record)
    }
    return sorted(names, key=lambda n: (HEADLINES.index(n) if n in HEADLINES else 99, n))


def smaller_is_better(metric: str) -> bool:
    """Whether less of it is more."""
    return any(word in metric for word in SMALLER_IS_BETTER)


def best(configured: Sequence[Configuration], metric: str) -> Configuration | None:
    """The one with the best mean of last values; None if none has the metric."""
    sign = 1 if smaller_is_better(metric) else -1
    rated = [(sign * mean(finals), c) for c in configured if (finals := c.finals(metric))]
    rated = [(value, c) for value, c in rated if value == value]
    return min(rated, key=lambda pair: pair[0])[1] if rated else None


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    if not values:
        return "-"
    return f"{mean(values):.4g}" + (f" ± {deviation(values):.2g}" if len(values) > 1 else "")


def deviation(values: Sequence[float]) -> float:
    """The standard deviation; there is none of values that are not finite."""
    if not all(map(isfinite, values)):
        return nan
    return stdev(values) if len(values) > 1 else 0.0
