"""`python -m fedsys.table RUN...`: each method at the best of its settings, as a markdown table."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from fedsys.errors import FedsysError, InputError
from fedsys.report.configurations import smaller_is_better, spread, varied_settings
from fedsys.report.runs import Run, read_run


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
        return spread([run.final[metric] for run in self.runs])


def best_rows(runs: Iterable[Run], metric: str, by: str = "algorithm") -> list[Row]:
    """The best setting of each method, best method first."""
    groups: dict[tuple[str, Any], list[Run]] = defaultdict(list)
    for run in runs:
        row = run.choices[by]
        if metric not in run.final:
            known = ", ".join(run.final)
            raise InputError(f"{row} reports no metric named {metric!r}; it reports {known}")
        groups[row, tuple(sorted(run.settings.items()))].append(run)
    sign = 1 if smaller_is_better(metric) else -1

    def order(row: Row) -> float:
        return sign * row.value(metric)

    rows = sorted((Row(n, dict(s), runs) for (n, s), runs in groups.items()), key=order)
    first = {row.name: row for row in reversed(rows)}
    return sorted(first.values(), key=order)


def table(runs: Sequence[Run], metrics: Sequence[str], by: str = "algorithm") -> str:
    """Markdown: the metrics of the best rows, what they sent, and the settings that vary."""
    rows = best_rows(runs, metrics[0], by)
    head = [by, *metrics, "rounds", "MB up", "seeds", "settings tried", "best setting"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        settings = [run.settings for run in runs if run.choices[by] == row.name]
        tried = [dict(one) for one in {tuple(sorted(one.items())) for one in settings}]
        varied = sorted(varied_settings(tried))
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
                    f"{key.removeprefix('algorithm.')}={row.settings.get(key)}" for key in varied
                ),
            ]
        )
    return markdown(lines)


def markdown(lines: Iterable[Iterable[str]]) -> str:
    """Cells as a table of markdown; the second line is the rule below the head."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def finished_runs(paths: Iterable[Path], by: str) -> Iterator[Run]:
    """The runs that have ended among these folders and below them."""
    for path in paths:
        found = sorted(summary.parent for summary in path.rglob("summary.json"))
        if not found:
            raise InputError(f"no finished run in {path}")
        for folder in found:
            run, warnings = read_run(folder)
            if run is None or not run.ended:
                raise InputError(warnings[0])
            if by not in run.choices:
                raise InputError(f"no group is named {by!r}; there are {', '.join(run.choices)}")
            yield run


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; 2 if there is none to make."""
    parser = argparse.ArgumentParser(prog="python -m fedsys.table", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="or a folder of runs")
    parser.add_argument("--metric", nargs="+", required=True, help="the first one decides")
    parser.add_argument("--by", default="algorithm", help="the group whose options are the rows")
    options = parser.parse_args(arguments)
    try:
        print(table(list(finished_runs(options.runs, options.by)), options.metric, options.by))
    except FedsysError as error:
        print(f"fedsys.table: {error.message}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
