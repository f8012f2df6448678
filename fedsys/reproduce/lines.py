"""Group the runs of an entry into panels and lines, each line with its best setting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import mean

from fedsys.core.errors import InputError
from fedsys.core.metrics import metric as metric_named
from fedsys.report.configurations import Configuration, configurations
from fedsys.report.runs import read_run
from fedsys.reproduce.entries import Entry
from fedsys.reproduce.pool import Outcome
from fedsys.reproduce.sweep import PlannedRun

ROUNDING = 1e-26
"""Errors below this value differ only by rounding and count as equal."""


@dataclass(frozen=True)
class Line:
    """A method in a panel, with its best setting."""

    name: str
    panel: str
    tags: dict[str, str]
    """The settings of the sweep that were chosen: those of the panel and the tuned ones."""
    setting: str
    """The tuned settings as text."""
    best: Configuration | None
    """None if every setting diverged or no run reports the metric."""
    tried: int
    diverged: int

    def finals(self, metric: str) -> list[float]:
        """Return the last values of a metric, one for each seed."""
        return [] if self.best is None else self.best.finals(metric)

    def absent(self) -> str:
        """Return why the line has no value."""
        return "diverged" if self.diverged else "no such metric"

    def is_of(self, where: Mapping[str, str]) -> bool:
        """Return whether the line belongs to the panels that `where` selects."""
        return all(self.tags.get(key) == str(value) for key, value in where.items())

    def means(self, metric: str, axis: str) -> list[float]:
        """Return the values of the curve, the mean over the seeds."""
        return [p.mean for p in self.best.curve(metric, axis)] if self.best else []

    def first_at(self, metric: str, axis: str, value: float) -> float:
        """Return where on the axis the mean over the seeds first reaches a value, or infinity.

        The resolution is the interval between two evaluations.
        """
        return _first_at(self.best, metric, axis, value) if self.best else inf

    def bound(self) -> float | None:
        """Return the theorem's bound as the mean over the seeds; None if a run has no bound."""
        runs = self.best.runs if self.best else []
        bounds = [(run.summary.get("theory") or {}).get("bound") for run in runs]
        known = [float(bound["at_most"]) for bound in bounds if bound]
        return mean(known) if known and len(known) == len(bounds) else None


def lines_of(
    entry: Entry, runs: Sequence[PlannedRun], outcomes: Mapping[Path, Outcome]
) -> list[Line]:
    """Return the lines of all panels, in the order of the sweep."""
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
    """Return the title of the panel of a run."""
    chosen = [f"{key.rpartition('.')[2]} {run.tags[key]}" for key in entry.panels]
    return ", ".join([run.part, *chosen] if run.part else chosen)


def line_of(entry: Entry, run: PlannedRun) -> str:
    """Return the name of the line of a run."""
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
    # The title of a part already tells what all of its runs share.
    shown = _varied(members) if members[0].part else varied
    tuned = [key for key in shown if key not in (*entry.panels, *entry.lines, "seed")]
    candidates: list[tuple[tuple[float, float], PlannedRun, Configuration]] = []
    by_setting: dict[tuple[str, ...], list[PlannedRun]] = defaultdict(list)
    for run in members:
        by_setting[tuple(run.tags[key] for key in tuned if key in run.tags)].append(run)
    metric = entry.metrics[0]
    sign = metric_named(metric).sign
    diverged = 0
    for seeds in by_setting.values():
        # A setting with a diverged seed is excluded: a mean over the other seeds would be biased.
        failed = any(outcomes[run.folder].state == "diverged" for run in seeds)
        if all(outcomes[run.folder].state == "ended" for run in seeds):
            configuration = _configuration(seeds)
            if configuration is not None and (finals := configuration.finals(metric)):
                failed = not isfinite(value := sign * mean(finals))
                if not failed:
                    rank = (value, 0.0)
                    if sign > 0 and value <= ROUNDING:
                        rank = (ROUNDING, _first_at(configuration, metric, entry.axis, ROUNDING))
                    candidates.append((rank, seeds[0], configuration))
        diverged += failed
    best = min(candidates, key=lambda candidate: candidate[0], default=None)
    chosen = best[1] if best else members[0]
    setting = ", ".join(f"{_last(key)}={chosen.tags[key]}" for key in tuned if key in chosen.tags)
    tags = {**chosen.tags, "part": chosen.part}
    configuration = best[2] if best else None
    return Line(name, panel, tags, setting, configuration, len(by_setting), diverged)


def _first_at(configuration: Configuration, metric: str, axis: str, value: float) -> float:
    sign = metric_named(metric).sign
    points = configuration.curve(metric, axis)
    return next((p.x for p in points if sign * p.mean <= sign * value), inf)


def _configuration(seeds: Sequence[PlannedRun]) -> Configuration | None:
    """Return the runs of one setting as a configuration."""
    read = []
    for planned in seeds:
        run, warnings = read_run(planned.folder)
        if run is None:
            raise InputError(f"{warnings[0]}; remove {planned.folder} to run it again")
        read.append(run)
    found = configurations(read)
    if len(found) > 1:
        folders = ", ".join(str(c.runs[0].folder) for c in found[:2])
        raise InputError(
            f"the config.yaml of runs with the same setting differ ({folders}); remove the folder "
            "of the one that was changed to run it again"
        )
    return found[0] if found else None


def _varied(runs: Sequence[PlannedRun]) -> list[str]:
    keys = dict.fromkeys(key for run in runs for key in run.tags)
    return [key for key in keys if len({run.tags.get(key) for run in runs}) > 1]


def _last(key: str) -> str:
    return key.rpartition(".")[2]
