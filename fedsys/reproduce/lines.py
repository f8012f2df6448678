"""The runs of an entry, put together: a panel for each setting, in it a line for each method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import mean

from fedsys.report.configurations import Configuration, configurations, smaller_is_better
from fedsys.report.runs import Run, read_run
from fedsys.reproduce.entries import Entry
from fedsys.reproduce.pool import Outcome
from fedsys.reproduce.sweep import PlannedRun

ROUNDING = 1e-26
"""Of errors below this, which is smaller is a matter of rounding."""


@dataclass(frozen=True)
class Line:
    """A method in a panel, at the best of its settings."""

    name: str
    panel: str
    tags: dict[str, str]
    """What was chosen for it: the panel's values, and those that were tuned."""
    setting: str
    """The tuned ones in words."""
    best: Configuration | None
    """None if it diverged whatever the setting, or never had the metric."""
    tried: int
    diverged: int

    def finals(self, metric: str) -> list[float]:
        """The last values of its seeds."""
        return [] if self.best is None else self.best.finals(metric)

    def absent(self) -> str:
        """Why it has no value."""
        return "diverged" if self.diverged else "no such metric"

    def is_of(self, where: Mapping[str, str]) -> bool:
        """Whether it belongs to the panels that are meant."""
        return all(self.tags.get(key) == str(value) for key, value in where.items())

    def means(self, metric: str, axis: str) -> list[float]:
        """The curve that is drawn."""
        return [p.mean for p in self.best.curve(metric, axis)] if self.best else []

    def first_at(self, metric: str, axis: str, value: float) -> float:
        """Where on the axis the mean of the seeds first gets to a value; infinity if it never does.

        Between two evaluations nobody looked, so this is as coarse as they are.
        """
        return _first_at(self.best, metric, axis, value) if self.best else inf

    def bound(self) -> float | None:
        """What the theorem promises, if the runs know it."""
        theory = self.best.runs[0].summary.get("theory") if self.best else None
        bound = (theory or {}).get("bound")
        return float(bound["at_most"]) if bound else None


def lines_of(
    entry: Entry, runs: Sequence[PlannedRun], outcomes: Mapping[Path, Outcome]
) -> list[Line]:
    """Every line of every panel, in the order of the sweep."""
    varied = _varied(runs)
    grouped: dict[tuple[str, str], list[PlannedRun]] = defaultdict(list)
    for run in runs:
        if outcomes[run.folder].state != "failed":
            grouped[panel_of(entry, run), line_of(entry, run)].append(run)
    panels = list(dict.fromkeys(panel for panel, _ in grouped))
    by_panel = sorted(grouped.items(), key=lambda item: panels.index(item[0][0]))
    return [
        _line(entry, name, panel, members, outcomes, varied) for (panel, name), members in by_panel
    ]


def panel_of(entry: Entry, run: PlannedRun) -> str:
    """The title of the panel that a run belongs to."""
    chosen = [f"{key.rpartition('.')[2]} {run.tags[key]}" for key in entry.panels]
    return ", ".join([run.part, *chosen] if run.part else chosen)


def line_of(entry: Entry, run: PlannedRun) -> str:
    """The name of its line."""
    names = [
        run.tags[key].rpartition("/")[2] if key == "algorithm" else f"{_last(key)} {run.tags[key]}"
        for key in entry.lines
    ]
    return ", ".join(names)


def _line(
    entry: Entry,
    name: str,
    panel: str,
    members: Sequence[PlannedRun],
    outcomes: Mapping[Path, Outcome],
    varied: Sequence[str],
) -> Line:
    # What all runs of a part with a title share is in its title.
    told = _varied(members) if members[0].part else varied
    tuned = [key for key in told if key not in (*entry.panels, *entry.lines, "seed")]
    candidates: list[tuple[tuple[float, float], PlannedRun, Configuration]] = []
    by_setting: dict[tuple[str, ...], list[PlannedRun]] = defaultdict(list)
    for run in members:
        by_setting[tuple(run.tags[key] for key in tuned if key in run.tags)].append(run)
    metric = entry.metrics[0]
    sign = 1 if smaller_is_better(metric) else -1
    diverged = 0
    for seeds in by_setting.values():
        # A seed that diverged rules its setting out: its mean would be that of the lucky ones.
        lost = any(outcomes[run.folder].state == "diverged" for run in seeds)
        if all(outcomes[run.folder].state == "ended" for run in seeds):
            (configuration,) = configurations(_read(seeds)) or (None,)
            if configuration is not None and (finals := configuration.finals(metric)):
                lost = not isfinite(value := sign * mean(finals))
                if not lost:
                    rank = (value, 0.0)
                    if sign > 0 and value <= ROUNDING:
                        rank = (ROUNDING, _first_at(configuration, metric, entry.axis, ROUNDING))
                    candidates.append((rank, seeds[0], configuration))
        diverged += lost
    best = min(candidates, key=lambda one: one[0], default=None)
    chosen = best[1] if best else members[0]
    setting = ", ".join(f"{_last(key)}={chosen.tags[key]}" for key in tuned if key in chosen.tags)
    tags = {**chosen.tags, "part": chosen.part}
    configuration = best[2] if best else None
    return Line(name, panel, tags, setting, configuration, len(by_setting), diverged)


def _first_at(configuration: Configuration, metric: str, axis: str, value: float) -> float:
    sign = 1 if smaller_is_better(metric) else -1
    points = configuration.curve(metric, axis)
    return next((p.x for p in points if sign * p.mean <= sign * value), inf)


def _read(seeds: Sequence[PlannedRun]) -> list[Run]:
    return [run for planned in seeds if (run := read_run(planned.folder)[0]) is not None]


def _varied(runs: Sequence[PlannedRun]) -> list[str]:
    keys = dict.fromkeys(key for run in runs for key in run.tags)
    return [key for key in keys if len({run.tags.get(key) for run in runs}) > 1]


def _last(key: str) -> str:
    return key.rpartition(".")[2]
