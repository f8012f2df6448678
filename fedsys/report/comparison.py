"""Algorithms side by side in Python: `fedsys.compare`, with the curves and bands of reports."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any

from typing_extensions import override

from fedsys.core.algorithm import Algorithm
from fedsys.core.errors import InputError, NonFiniteError
from fedsys.core.metrics import Record
from fedsys.core.oracles import Oracle, Problem
from fedsys.distributed.world import World
from fedsys.report.configurations import Configuration, spread
from fedsys.report.figures import draw_curve, scale
from fedsys.report.runs import Run
from fedsys.training.api import run
from fedsys.training.curves import label_axes, new_axes, no_such_metric
from fedsys.training.file_names import file_stems
from fedsys.training.sweep import Algorithms, named_algorithms, sweep
from fedsys.training.sweep_result import SweepResult, SweepRun, SweepSetting

_LINE_WIDTH = 1.7
_OF_STACKED_RUNS = {"clients", "dtype", "device", "communicator", "evaluate_every"}
"""The options that runs which are stepped together may have."""


def compare(
    problem: Problem[Oracle],
    algorithms: Algorithms,
    *,
    seeds: Iterable[int] = range(3),
    steps: int | None = None,
    rounds: int | None = None,
    run_dir: str | PathLike[str] | None = None,
    **options: Any,
) -> Comparison:
    """Run each algorithm with each seed, and compare them by mean and deviation.

    Seeds of an algorithm are stepped together where `fedsys.sweep` does that, with the numbers of
    separate runs up to rounding; their `seconds` are then those of all of them. With `run_dir`,
    with several ranks and with options that concern single runs, such as `on_step` or `progress`,
    they follow one another. A run that diverges ends alone.

    Args:
        problem: what to solve.
        algorithms: one algorithm, several, or several by label.
        seeds: the seeds.
        steps: the number of iterations; give either `steps` or `rounds`.
        rounds: the number of communication rounds.
        run_dir: a folder for the run directories LABEL-seed-SEED, which `fedsys-report` reads.
            Finished runs are read from it, interrupted ones are continued.
        options: further options of `fedsys.run`.
    """
    known = set(signature(run).parameters) - {"problem", "algorithm", "seed"}
    for name in options.keys() - known:
        advice = "give seeds=" if name == "seed" else f"options are {', '.join(sorted(known))}"
        raise InputError(f"compare has no option {name}; {advice}")
    seeds, named = list(seeds), named_algorithms(algorithms)
    if not seeds or not named:
        raise InputError("compare: no runs; give at least one algorithm and one seed")
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise InputError(f"compare: seeds must differ, got {seed} twice")
    alone = World.from_environment().ranks == 1 and run_dir is None
    if alone and options.keys() <= _OF_STACKED_RUNS:
        numbers: dict[str, Any] = {"dtype": "float32", **options}
        given = {"seeds": seeds, "steps": steps, "rounds": rounds, "on_end": _raise_refusal}
        found = sweep(problem, named, **{**numbers, **given})
        return Comparison(found.runs, type(problem).__name__)
    options |= {"steps": steps, "rounds": rounds}
    runs = [
        _run_one(problem, name, algorithm, seed, folder, options)
        for (name, algorithm), stem in zip(named.items(), file_stems(named).values(), strict=True)
        for seed in seeds
        for folder in [None if run_dir is None else Path(run_dir) / f"{stem}-seed-{seed}"]
    ]
    return Comparison(runs, type(problem).__name__)


@dataclass(frozen=True, repr=False)
class Comparison(SweepResult):
    """The runs of several algorithms with the same seeds."""

    problem: str = ""
    """The class of the problem."""

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """Draw the mean of a metric over the seeds, with a band of one standard deviation.

        Args:
            metric: the metric; by default the headline metric.
            ax: the axes of matplotlib to draw into; by default those of a new figure.

        Returns:
            The figure of matplotlib.
        """
        name = metric or self.metric
        curves = [(one.label, _configuration(one).curve(name, "round")) for one in self.settings]
        if not any(points for _, points in curves):
            raise no_such_metric(name, [record for run in self.runs for record in run.records])
        panel = new_axes() if ax is None else ax
        for index, (label, points) in enumerate(curves):
            draw_curve(panel, points, label, index, _LINE_WIDTH)
        scale(panel, name, [point.mean for _, points in curves for point in points])
        label_axes(panel, name)
        panel.legend(fontsize="small")
        return panel.figure

    @override
    def __repr__(self) -> str:
        metric, settings = self.metric, self.settings
        seeds = max((len(one.runs) for one in settings), default=0)
        rounds = max((run.final.get("round", 0) for run in self.runs), default=0)
        lines = [
            f"{self.problem}: {metric} after {rounds:.0f} rounds, mean ± standard deviation of "
            f"{seeds} seed{'' if seeds == 1 else 's'}"
        ]
        width = max((len(one.label) for one in settings), default=0)
        for one in settings:
            failed = f"  ({one.failed} of {len(one.runs)} failed)" if one.failed else ""
            lines.append(f"{one.label.ljust(width)}  {spread(one.finals(metric))}{failed}")
        return "\n".join(lines)


def _run_one(
    problem: Problem[Oracle],
    name: str,
    algorithm: Algorithm[Any, Any],
    seed: int,
    folder: Path | None,
    options: dict[str, Any],
) -> SweepRun:
    """Run one algorithm with one seed."""
    records: list[Record] = []
    pass_on = options.get("on_record", lambda record: None)

    def on_record(record: Record) -> None:
        records.append(record)
        pass_on(record)

    # A communicator has a state of its own.
    own = {**options, "communicator": copy.deepcopy(options.get("communicator"))}
    try:
        found = run(
            problem, algorithm, **{**own, "seed": seed, "on_record": on_record}, run_dir=folder
        )
    except NonFiniteError as error:
        return SweepRun(name, {}, seed, algorithm, records, None, error)
    return SweepRun(name, {}, seed, found.algorithm, found.records, found, None)


def _raise_refusal(ended: SweepRun) -> None:
    """Raise the error of an algorithm that the problem refuses."""
    if isinstance(ended.error, InputError):
        raise ended.error


def _configuration(setting: SweepSetting) -> Configuration:
    """Return the runs as a report sees them."""
    runs: Sequence[SweepRun] = setting.runs
    return Configuration(
        setting.label, {}, [Run(Path(), {}, str(one.seed), one.records) for one in runs]
    )
