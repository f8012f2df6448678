"""The result of an entry: our numbers beside those of the paper, and the verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from fedsys.core.errors import InputError
from fedsys.report.configurations import spread
from fedsys.report.table import markdown
from fedsys.reproduce.claims import Verdict, verdicts
from fedsys.reproduce.entries import Entry
from fedsys.reproduce.lines import Line
from fedsys.reproduce.pool import Outcome
from fedsys.training.redaction import redacted_override
from fedsys.training.run_files import UnreadableError, read_object


@dataclass(frozen=True)
class Cell:
    """A measured number, and the number that the paper prints, if any."""

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
        """Our number divided by the paper's."""
        return self.ours / self.paper if self.ours is not None and self.paper else None


@dataclass(frozen=True)
class EntryResult:
    """Everything that is stored about an entry except its runs and its figure."""

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
        """Write the result as JSON."""
        from fedsys.training.run_directory import write

        write(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> EntryResult:
        """Read a result that `save` has written."""
        try:
            content: dict[str, Any] = read_object(path) or {}
            content["cells"] = [Cell(**cell) for cell in content["cells"]]
            content["verdicts"] = [Verdict(**verdict) for verdict in content["verdicts"]]
            result = cls(**content)
            table(result), verdict_lines(result)  # these raise if a value has a wrong type
            return result
        except (UnreadableError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise InputError(f"{path} is not a result of fedsys-reproduce: {error}") from error


def result_of(
    name: str,
    entry: Entry,
    scale: str,
    overrides: Sequence[str],
    lines: Sequence[Line],
    outcomes: Mapping[Path, Outcome],
) -> EntryResult:
    """Collect the numbers and verdicts of an entry, and the origin of its runs."""
    made = list(outcomes.values())
    failed = [f"{p.name}: {o.message}" for p, o in outcomes.items() if o.state == "failed"]
    return EntryResult(
        name,
        scale,
        [redacted_override(override) for override in overrides],
        sorted({o.commit for o in made if o.commit}),
        sorted({o.machine for o in made if o.machine}),
        max((o.date for o in made), default=""),
        len(made),
        sum(o.seconds for o in made),
        [_cell(entry, line, metric) for line in lines for metric in (*entry.metrics, *entry.also)],
        [verdict for claim in entry.claims for verdict in verdicts(entry, claim, lines)],
        failed,
    )


def _cell(entry: Entry, line: Line, metric: str) -> Cell:
    finals = line.finals(metric)
    paper, source = paper_number(entry, line, metric)
    ours = mean(finals) if finals else None
    text = spread(finals) if finals else line.absent()
    return Cell(
        *(line.panel, line.name, metric, ours, text, paper, source),
        *(line.setting, line.tried, line.diverged, len(finals)),
    )


def paper_number(entry: Entry, line: Line, metric: str) -> tuple[float | None, str]:
    """Return the number that the paper prints for a line, and its source."""
    for numbers in entry.numbers:
        fits = line.is_of(numbers.where) and numbers.metric == metric
        if fits and line.name in numbers.values:
            return numbers.values[line.name], numbers.source
    return None, ""


def table(result: EntryResult) -> str:
    """Return a markdown table: the paper's number, ours, and their ratio."""
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


def verdict_lines(result: EntryResult) -> list[str]:
    """Return a line for each claim that says whether it holds."""
    return [
        f"{'holds' if v.holds else 'DOES NOT HOLD'}: {v.says}"
        f"{f' [{v.panel}]' if v.panel else ''}: {v.numbers}"
        for v in result.verdicts
    ]
