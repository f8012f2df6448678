"""Decide whether the claims of a paper hold for the measured lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import mean

from fedsys.core.metrics import metric as metric_named
from fedsys.reproduce.entries import Claim, Entry
from fedsys.reproduce.lines import ROUNDING, Line


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds in a panel, and the numbers that decide it."""

    says: str
    panel: str
    holds: bool
    numbers: str


def verdicts(entry: Entry, claim: Claim, lines: Sequence[Line]) -> list[Verdict]:
    """Return a verdict for each panel of the claim in which the lines that it compares were run."""
    metric = claim.metric or entry.metrics[0]
    found = []
    selected = [line for line in lines if line.is_of(claim.where)]
    for panel in dict.fromkeys(line.panel for line in selected):
        by_name = {line.name: line for line in selected if line.panel == panel}
        decision = _decide(claim, metric, entry.axis, by_name)
        if decision is not None:
            found.append(Verdict(claim.says, panel, *decision))
    return found


def _decide(
    claim: Claim, metric: str, axis: str, lines: Mapping[str, Line]
) -> tuple[bool, str] | None:
    ours = [claim.better] if claim.better else claim.either
    named = [*ours, *claim.than] if ours else [*claim.reaches, *claim.within]
    here = lines if claim.below_bound else {n: lines[n] for n in named if n in lines}
    if not here or (ours and not (here.keys() & ours and here.keys() & claim.than)):
        return None
    if claim.sooner or claim.to is not None:
        return _is_first(here, metric, axis, claim.to)
    # Signed, so that lower is better for every metric; a line without a value is the worst.
    sign = metric_named(metric).sign
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
    if ours:
        rounded = {n: max(v, ROUNDING) if sign > 0 else v for n, v in values.items()}
        first = min(v for n, v in rounded.items() if n in ours)
        beaten = all(first < v for n, v in rounded.items() if n not in ours)
        return beaten, ", ".join(shown.values())
    sizes = [abs(value) for value in values.values()]
    holds = max(sizes) <= max(claim.within.values()) * max(min(sizes), ROUNDING)
    return holds, ", ".join(shown.values())


def _value(claim: Claim, line: Line, metric: str, axis: str) -> float | None:
    values = line.means(metric, axis)[1:] if claim.on_average else line.finals(metric)
    return mean(values) if values else None


def _is_first(
    lines: Mapping[str, Line], metric: str, axis: str, goal: float | None
) -> tuple[bool, str]:
    """Return whether the first line reaches `goal` before all others, and the numbers.

    Without a goal it is the worst of the last values, which every line reaches.
    """
    if goal is None:
        ends = [means[-1] for line in lines.values() if (means := line.means(metric, axis))]
        goal = (max if metric_named(metric).lower_is_better else min)(ends, default=0.0)
    arrivals = {name: line.first_at(metric, axis, goal) for name, line in lines.items()}
    texts = [f"{n} {f'at {axis} {x:g}' if x < inf else 'never'}" for n, x in arrivals.items()]
    first, *others = arrivals.values()
    return all(first < other for other in others), f"at {goal:.4g}: {', '.join(texts)}"
