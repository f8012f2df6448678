"""`python -m fedsys.table RUN...`: each method at the best of its settings, as a markdown table."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from omegaconf import OmegaConf

from fedsys.errors import FedsysError, InputError

_OF_NO_CONSEQUENCE = ("seed", "run", "logger", "resume", "checkpoint", "evaluate_every")
"""Settings that two runs of one method may differ in."""

SMALLER_IS_BETTER = ("loss", "error", "gap", "norm", "distance", "eqopp", "eqodds")


@dataclass(frozen=True)
class Run:
    """What a table needs of a run directory."""

    row: str
    settings: tuple[tuple[str, str], ...]
    final: dict[str, float]

    @classmethod
    def read(cls, folder: Path, by: str) -> Run:
        """From the summary of a run that has ended."""
        summary = json.loads((folder / "summary.json").read_text())
        if by not in summary["choices"]:
            raise InputError(f"no group is named {by!r}; there are {', '.join(summary['choices'])}")
        config = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
        settings = tuple(sorted(_flat(config)))
        return cls(summary["choices"][by], settings, summary["final"])


@dataclass(frozen=True)
class Row:
    """A method at one of its settings, over all seeds."""

    name: str
    settings: dict[str, str]
    runs: list[Run]

    def value(self, metric: str) -> float:
        """The mean over the seeds."""
        return mean(run.final[metric] for run in self.runs)

    def spread(self, metric: str) -> str:
        """Mean and standard deviation."""
        values = [run.final[metric] for run in self.runs]
        return f"{mean(values):.4g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")


def best_rows(runs: Iterable[Run], metric: str) -> list[Row]:
    """The best setting of each method, best method first."""
    groups: dict[tuple[str, Any], list[Run]] = defaultdict(list)
    for run in runs:
        if metric not in run.final:
            known = ", ".join(run.final)
            raise InputError(f"{run.row} reports no metric named {metric!r}; it reports {known}")
        groups[run.row, run.settings].append(run)
    sign = 1 if any(word in metric for word in SMALLER_IS_BETTER) else -1

    def order(row: Row) -> float:
        return sign * row.value(metric)

    rows = sorted((Row(n, dict(s), runs) for (n, s), runs in groups.items()), key=order)
    first = {row.name: row for row in reversed(rows)}
    return sorted(first.values(), key=order)


def table(runs: Sequence[Run], metrics: Sequence[str], by: str = "algorithm") -> str:
    """Markdown: the metrics of the best rows, what they sent, and the settings that vary."""
    rows = best_rows(runs, metrics[0])
    settings_tried = {(run.row, run.settings) for run in runs}
    head = [by, *metrics, "rounds", "MB up", "seeds", "settings tried", "best setting"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        tried = [dict(settings) for name, settings in settings_tried if name == row.name]
        varied = [key for key in row.settings if len({settings.get(key) for settings in tried}) > 1]
        final = row.runs[0].final
        lines.append(
            [
                row.name,
                *(row.spread(metric) for metric in metrics),
                f"{final['round']:.0f}",
                f"{final['bytes_up'] / 1e6:.3g}",
                str(len(row.runs)),
                str(len(tried)),
                ", ".join(
                    f"{key.removeprefix('algorithm.')}={row.settings[key]}" for key in varied
                ),
            ]
        )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def run_folders(paths: Iterable[Path]) -> Iterator[Path]:
    """The run directories among these and below them."""
    for path in paths:
        found = sorted(summary.parent for summary in path.rglob("summary.json"))
        if not found:
            raise InputError(f"no finished run in {path}")
        yield from found


def _flat(config: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """All settings by their dotted names, but those of no consequence."""
    for name, value in config.items():
        if prefix == "" and name in _OF_NO_CONSEQUENCE:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif not (name == "seed" and prefix == "dataset."):
            yield f"{prefix}{name}", str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; 2 if there is none to make."""
    parser = argparse.ArgumentParser(prog="python -m fedsys.table", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="or a folder of runs")
    parser.add_argument("--metric", nargs="+", required=True, help="the first one decides")
    parser.add_argument("--by", default="algorithm", help="the group whose options are the rows")
    options = parser.parse_args(arguments)
    try:
        runs = [Run.read(folder, options.by) for folder in run_folders(options.runs)]
        print(table(runs, options.metric, options.by))
    except FedsysError as error:
        print(f"fedsys.table: {error.message}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
