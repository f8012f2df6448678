"""What an entry came to: our numbers beside the paper's, and whether its claims hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from fedsys.report.configurations import smaller_is_better, spread
from fedsys.reproduce.entries import Claim, Entry
from fedsys.reproduce.lines import ROUNDING, Line
from fedsys.reproduce.pool import Outcome
from fedsys.table import markdown


@dataclass(frozen=True)
class Cell:
    """A number of ours, and the paper's if it prints one."""

    panel: str
    line: str
    metric: str
    ours: float | None
    spread: str
    paper: float | None
    source: str
    setting: str
    tried: int
    diverged: int
    seeds: int

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's."""
        return self.ours / self.paper if self.ours is not None and self.paper else None


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds in a panel, and by which numbers."""

    says: str
    panel: str
    holds: bool
    numbers: str


@dataclass(frozen=True)
class Result:
    """All that is kept of an entry besides its runs and its figure."""

    name: str
    scale: str
    overrides: list[str]
    commits: list[str]
    machines: list[str]
    date: str
    runs: int
    seconds: float
    cells: list[Cell]
    verdicts: list[Verdict]
    missing: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """As JSON."""
        from fedsys.runtime.run_directory import write

        write(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Result:
        """What `save` wrote."""
        content: dict[str, Any] = json.loads(path.read_text())
        content["cells"] = [Cell(**cell) for cell in content["cells"]]
        content["verdicts"] = [Verdict(**verdict) for verdict in content["verdicts"]]
        return cls(**content)


def result_of(
    name: str,
    entry: Entry,
    scale: str,
    overrides: Sequence[str],
    lines: Sequence[Line],
    outcomes: Mapping[Path, Outcome],
) -> Result:
    """Numbers, verdicts and where they come from."""
    made = list(outcomes.values())
    failed = [f"{p.name}: {o.message}" for p, o in outcomes.items() if o.state == "failed"]
    return Result(
        name,
        scale,
        list(overrides),
        sorted({o.commit for o in made if o.commit}),
        sorted({o.machine for o in made if o.machine}),
        max((o.date for o in made), default=""),
        len(made),
        sum(o.seconds for o in made),
        [_cell(entry, line, metric) for line in lines for metric in entry.metrics],
        [verdict for claim in entry.claims for verdict in _verdicts(entry, claim, lines)],
        failed,
    )


def _cell(entry: Entry, line: Line, metric: str) -> Cell:
    finals = line.finals(metric)
    paper, source = _paper(entry, line, metric)
    ours = mean(finals) if finals else None
    text = spread(finals) if finals else line.absent()
    return Cell(
        *(line.panel, line.name, metric, ours, text, paper, source),
        *(line.setting, line.tried, line.diverged, len(finals)),
    )


def _paper(entry: Entry, line: Line, metric: str) -> tuple[float | None, str]:
    for numbers in entry.numbers:
        fits = matches(line, numbers.where) and numbers.metric == metric
        if fits and line.name in numbers.values:
            return numbers.values[line.name], numbers.source
    return None, ""


def matches(line: Line, where: Mapping[str, str]) -> bool:
    """Whether a line belongs to the panels that are meant."""
    return all(line.tags.get(key) == str(value) for key, value in where.items())


def _verdicts(entry: Entry, claim: Claim, lines: Sequence[Line]) -> list[Verdict]:
    metric = claim.metric or entry.metrics[0]
    verdicts = []
    for panel in dict.fromkeys(line.panel for line in lines if matches(line, claim.where)):
        here = {
            line.name: line for line in lines if line.panel == panel and matches(line, claim.where)
        }
        decided = _decide(claim, metric, entry.axis, here)
        if decided is not None:
            verdicts.append(Verdict(claim.says, panel, *decided))
    return verdicts


def _decide(
    claim: Claim, metric: str, axis: str, lines: Mapping[str, Line]
) -> tuple[bool, str] | None:
    """Whether it holds, and the numbers; None if the lines it speaks of were not run."""
    sign = 1 if smaller_is_better(metric) else -1
    named = [claim.better, *claim.than] if claim.better else [*claim.reaches, *claim.within]
    named = list(lines) if claim.below_bound else [name for name in named if name in lines]
    if not named or (claim.better and (claim.better not in named or len(named) < 2)):
        return None
    goal = claim.to
    if claim.sooner:
        ends = [end for n in named if (end := lines[n].last_mean(metric, axis)) is not None]
        goal = max(ends, key=lambda end: sign * end, default=0.0)
    if goal is not None:
        arrivals = [(n, lines[n].first_at(metric, axis, goal)) for n in named]
        holds, text = _who_is_first(arrivals, axis)
        return holds, f"at {goal:.4g}: {text}"
    worst = float("inf")
    values = {n: sign * mean(f) if (f := lines[n].finals(metric)) else worst for n in named}
    shown = {
        n: f"{n} {abs(v):.4g}" if v < worst else f"{n} {lines[n].absent()}"
        for n, v in values.items()
    }
    if claim.below_bound:
        bounds = {n: b for n in named if (b := lines[n].bound()) is not None}
        if not bounds:
            return None
        text = "; ".join(f"{shown[n]} (at most {b:.4g})" for n, b in bounds.items())
        return all(values[n] <= b for n, b in bounds.items()), text
    if claim.better:
        first, *others = (max(values[n], ROUNDING) if sign > 0 else values[n] for n in named)
        return all(first <= other for other in others) and first < worst, ", ".join(shown.values())
    if claim.reaches:
        goals = {n: sign * claim.reaches[n] for n in named}
        text = "; ".join(f"{shown[n]} (goal {claim.reaches[n]:.4g})" for n in named)
        return all(values[n] <= goals[n] for n in named), text
    factor = max(claim.within.values())
    sizes = [abs(value) for value in values.values()]
    return max(sizes) <= factor * max(min(sizes), ROUNDING), ", ".join(shown.values())


def _who_is_first(arrivals: Sequence[tuple[str, float]], axis: str) -> tuple[bool, str]:
    """Whether the first of them is there before all others."""
    texts = [f"{n} {f'at {axis} {x:g}' if x < inf else 'never'}" for n, x in arrivals]
    (_, mine), *others = arrivals
    return all(mine < x for _, x in others), ", ".join(texts)


def table(result: Result) -> str:
    """Markdown: the paper's number, ours, and the ratio."""
    panels = any(cell.panel for cell in result.cells)
    head = [*(["panel"] if panels else []), "method", "metric", "paper", "ours", "ours / paper"]
    head += ["best setting", "settings tried", "seeds"]
    rows = [head, ["---"] * len(head)]
    for cell in result.cells:
        paper = "-" if cell.paper is None else f"{cell.paper:.4g}"
        if cell.source not in ("", "paper"):
            paper += f" ({cell.source})"
        tried = f"{cell.tried}" + (f", {cell.diverged} diverged" if cell.diverged else "")
        rows.append(
            [
                *([cell.panel] if panels else []),
                *(cell.line, cell.metric, paper, cell.spread),
                "-" if cell.ratio is None else f"{cell.ratio:.3g}",
                *(cell.setting or "-", tried, str(cell.seeds)),
            ]
        )
    return markdown(rows)


def verdict_lines(result: Result) -> list[str]:
    """The claims, and whether they hold."""
    return [
        f"{'holds' if v.holds else 'DOES NOT HOLD'}: {v.says}"
        f"{f' [{v.panel}]' if v.panel else ''}: {v.numbers}"
        for v in result.verdicts
    ]
