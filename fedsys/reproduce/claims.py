"""Whether the claims of a paper hold, and by which numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import mean

from fedsys.report.configurations import smaller_is_better
from fedsys.reproduce.entries import Claim, Entry
from fedsys.reproduce.lines import ROUNDING, Line


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds in a panel, and by which numbers."""

    says: str
    panel: str
    holds: bool
    numbers: str


def verdicts(entry: Entry, claim: Claim, lines: Sequence[Line]) -> list[Verdict]:
    """One for each panel that the claim speaks of, if the lines that it names were run."""
    metric = claim.metric or entry.metrics[0]
    found = []
    meant = [line for line in lines if line.is_of(claim.where)]
    for panel in dict.fromkeys(line.panel for line in meant):
        here = {line.name: line for line in meant if line.panel == panel}
        decided = _decide(claim, metric, entry.axis, here)
        if decided is not None:
            found.append(Verdict(claim.says, panel, *decided))
    return found


def _decide(
    claim: Claim, metric: str, axis: str, lines: Mapping[str, Line]
) -> tuple[bool, str] | None:
    named = [claim.better, *claim.than] if claim.better else [*claim.reaches, *claim.within]
    here = lines if claim.below_bound else {n: lines[n] for n in named if n in lines}
    if not here or (claim.better and (claim.better not in here or len(here) < 2)):
        return None
    if claim.sooner or claim.to is not None:
        return _who_is_first(here, metric, axis, claim.to)
    # Signed, so that less is better whatever the metric; a line without a value is the worst.
    sign = 1 if smaller_is_better(metric) else -1
    values = {n: sign * v if (v := _value(claim, line, metric, axis)) is not None else inf
              for n, line in here.items()}  # fmt: skip
    shown = {n: f"{n} {abs(v):.4g}" if v < inf else f"{n} {here[n].absent()}"
             for n, v in values.items()}  # fmt: skip
    if claim.below_bound:
        bounds = {n: b for n, line in here.items() if (b := line.bound()) is not None}
        text = "; ".join(f"{shown[n]} (at most {b:.4g})" for n, b in bounds.items())
        return (all(values[n] <= b for n, b in bounds.items()), text) if bounds else None
    if claim.reaches:
        text = "; ".join(f"{shown[n]} (goal {claim.reaches[n]:.4g})" for n in here)
        return all(values[n] <= sign * claim.reaches[n] for n in here), text
    if claim.better:
        first, *others = (max(v, ROUNDING) if sign > 0 else v for v in values.values())
        return all(first < other for other in others), ", ".join(shown.values())
    sizes = [abs(value) for value in values.values()]
    holds = max(sizes) <= max(claim.within.values()) * max(min(sizes), ROUNDING)
    return holds, ", ".join(shown.values())


def _value(claim: Claim, line: Line, metric: str, axis: str) -> float | None:
    values = line.means(metric, axis)[1:] if claim.on_average else line.finals(metric)
    return mean(values) if values else None


def _who_is_first(
    lines: Mapping[str, Line], metric: str, axis: str, goal: float | None
) -> tuple[bool, str]:
    """Whether the first of them gets to the goal before all others; none: where all get to."""
    if goal is None:
        ends = [means[-1] for line in lines.values() if (means := line.means(metric, axis))]
        goal = (max if smaller_is_better(metric) else min)(ends, default=0.0)
    arrivals = {name: line.first_at(metric, axis, goal) for name, line in lines.items()}
    texts = [f"{n} {f'at {axis} {x:g}' if x < inf else 'never'}" for n, x in arrivals.items()]
    mine, *others = arrivals.values()
    return all(mine < other for other in others), f"at {goal:.4g}: {', '.join(texts)}"
