"""Group runs that differ only in their seed into configurations; label, average and rank them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import mean, stdev

from fedsys.core.metrics import Record, importance, metrics_of
from fedsys.core.metrics import metric as metric_named
from fedsys.report.runs import Run
from fedsys.training.compared_settings import without_copies
from fedsys.training.console import UNCOMPRESSED

AXES = {
    "round": "communication rounds",
    "step": "steps per client",
    "bytes_up": "bytes sent per client",
    "seconds": "seconds of training",
}
_METHOD_GROUPS = ("algorithm", "communicator")
_GROUPS = ("algorithm", "problem", "dataset", "model", "partition")


@dataclass(frozen=True)
class Point:
    """A point of a curve: the mean over the seeds with a value there, and their band."""

    x: float
    mean: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Configuration:
    """The runs that share all settings except the seed."""

    label: str
    settings: dict[str, str]
    runs: list[Run]
    """One run for each seed."""
    repeated: tuple[Run, ...] = ()
    """Further runs of seeds that are already in `runs`; they enter no statistic."""

    def finals(self, metric: str) -> list[float]:
        """Return the last value of the metric for each seed that reports it."""
        return [run.final[metric] for run in self.runs if metric in run.final]

    def curve(self, metric: str, axis: str) -> list[Point]:
        """Return the mean of a metric, with a band of one standard deviation, against an axis.

        The band is clipped to the range of the seeds. Records are matched by round, because bytes
        and seconds differ between the seeds; the position on the axis is their mean.
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
    width = deviation(values)
    low, high = max(middle - width, min(values)), min(middle + width, max(values))
    return Point(mean(record[axis] for record in records), middle, low, high, len(values))


def configurations(runs: Iterable[Run]) -> list[Configuration]:
    """Group runs by their settings, and give each group the shortest label that is unique."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = defaultdict(list)
    for run in runs:
        # Nothing shows that a run without settings has the configuration of another run.
        key = tuple(sorted(run.settings.items())) or (("", str(run.folder)),)
        groups[key].append(run)
    members = list(groups.values())
    labels = _labels([_choices(runs) for runs in members], [runs[0] for runs in members])
    return [
        Configuration(label, runs[0].settings, *one_of_each_seed(runs))
        for label, runs in zip(labels, members, strict=True)
    ]


def one_of_each_seed(runs: Iterable[Run]) -> tuple[list[Run], tuple[Run, ...]]:
    """Return one run for each seed (a finished one, else the longest) and the remaining runs."""
    best_first = sorted(runs, key=lambda run: (not run.ended, -run.final.get("round", 0)))
    chosen: dict[str, Run] = {}
    repeated = [run for run in best_first if chosen.setdefault(run.seed, run) is not run]
    return sorted(chosen.values(), key=lambda run: run.seed), tuple(repeated)


def repetition_warnings(configured: Iterable[Configuration]) -> list[str]:
    """Return a warning for each repeated run, which says whether its final values are the same."""
    found = []
    for c in configured:
        for run in c.repeated:
            counted = next(other for other in c.runs if other.seed == run.seed)
            equal = metrics_of(counted.final) == metrics_of(run.final)
            found.append(
                f"{c.label}: seed {run.seed} was run more than once; {run.folder} is not counted "
                f"(its final values are {'equal to' if equal else 'DIFFERENT FROM'} those of "
                f"{counted.folder})"
            )
    return found


def comparison_warnings(configured: Sequence[Configuration]) -> list[str]:
    """Return a warning if the configurations differ in settings other than those of the method."""
    settings = [c.settings for c in configured]
    varied = {
        key: tuple(dict.fromkeys(values.get(key, "-") for values in settings))
        for key in varied_settings([values for values in settings if values])
        if key.partition(".")[0] not in _METHOD_GROUPS
    }
    rounds = tuple(
        dict.fromkeys(f"{max(ends):.0f}" for c in configured if (ends := c.finals("round")))
    )
    if len(rounds) > 1 and not {"rounds", "steps"} & set(varied):
        varied["completed rounds"] = rounds
    texts = [
        f"{key} ({', '.join(values[:4])}{', ...' if len(values) > 4 else ''})"
        for key, values in without_copies(varied).items()
    ]
    if not texts:
        return []
    shown = ", ".join(texts[:6]) + (f" and {len(texts) - 6} more" if len(texts) > 6 else "")
    return [f"the runs differ in settings other than the algorithm and the communicator: {shown}"]


def _choices(runs: Sequence[Run]) -> dict[str, str]:
    """Return the choices of a finished run if there is one."""
    return max(runs, key=lambda run: run.ended).choices


def _labels(choices: Sequence[dict[str, str]], runs: Sequence[Run]) -> list[str]:
    varied_groups = [
        # An interrupted run does not record all of its choices; a missing one is no difference.
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
        namesakes = [other for n, other in zip(names, runs, strict=True) if n == name]
        keys = varied_settings([other.settings for other in namesakes])
        details = [f"{key.removeprefix('algorithm.')}={run.settings.get(key, '')}" for key in keys]
        labels.append(", ".join([name, *details]))
    ambiguous = {label for label in labels if labels.count(label) > 1}
    return [
        f"{label} ({run.folder.name})" if label in ambiguous else label
        for label, run in zip(labels, runs, strict=True)
    ]


def varied_settings(all_settings: Sequence[dict[str, str]]) -> list[str]:
    """Return the names of the settings whose values differ."""
    keys = dict.fromkeys(key for settings in all_settings for key in settings)
    return [key for key in keys if len({settings.get(key) for settings in all_settings}) > 1]


def metrics(configured: Iterable[Configuration]) -> list[str]:
    """Return the name of every metric that a run reports, the most important first."""
    names = {
        name
        for c in configured
        for r in c.runs
        for record in r.records
        for name in metrics_of(record)
    }
    return sorted(names, key=importance)


def best(configured: Sequence[Configuration], metric: str) -> Configuration | None:
    """Return the configuration with the best mean last value; None if none reports the metric."""
    sign = metric_named(metric).sign
    rated = [(sign * mean(finals), c) for c in configured if (finals := c.finals(metric))]
    rated = [(value, c) for value, c in rated if value == value]
    return min(rated, key=lambda pair: pair[0])[1] if rated else None


def best_cells(configured: Sequence[Configuration], metric: str) -> list[bool]:
    """Return which configurations have the best mean last value; none if there is only one."""
    chosen = best(configured, metric) if len(configured) > 1 else None
    if chosen is None:
        return [False] * len(configured)
    target = mean(chosen.finals(metric))
    return [bool(finals := c.finals(metric)) and mean(finals) == target for c in configured]


def bytes_axis(runs: Iterable[Run]) -> str:
    """Return the label of the axis of `bytes_up`, with the compression of these runs."""
    codecs = sorted({run.compression for run in runs} - {"none"})
    text = AXES["bytes_up"]
    return f"{text} (size after {', '.join(codecs)}; {UNCOMPRESSED})" if codecs else text


def spread(values: Sequence[float]) -> str:
    """Format the mean and the standard deviation of some values."""
    if not values:
        return "-"
    return f"{mean(values):.4g}" + (f" ± {deviation(values):.2g}" if len(values) > 1 else "")


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation: 0 for one value, NaN if a value is not finite."""
    if not all(map(isfinite, values)):
        return nan
    return stdev(values) if len(values) > 1 else 0.0
