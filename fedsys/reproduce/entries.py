"""What is to be reproduced, as data: the files in papers/, one for each paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedsys.errors import InputError

SCALES = ("small", "paper")
FIGURES = ("curves", "bars")


@dataclass
class Part:
    """An experiment of conf/experiment, whose own sweep says which runs there are."""

    experiment: str
    title: str = ""
    overrides: list[str] = field(default_factory=list)


@dataclass
class Numbers:
    """What the paper prints for a metric, by line; `where` says in which panels."""

    metric: str
    values: dict[str, float]
    where: dict[str, str] = field(default_factory=dict)
    source: str = "paper"


@dataclass
class Claim:
    """A sentence of the paper, and the comparison that decides whether it holds.

    Exactly one of: `better` (a line) `than` (others), by last values, or by who is the first `to`
    get to a value, or, with `sooner`, to the last value that all of them get to, or by the mean of
    all values after the first (`on_average`); `reaches` (lines and the value that each gets to);
    `within` (lines and a factor: the worst is at most that much worse than the best); `below_bound`
    (every line ends below the bound of its theorem).
    """

    says: str
    better: str | None = None
    than: list[str] = field(default_factory=list)
    to: float | None = None
    sooner: bool = False
    on_average: bool = False
    reaches: dict[str, float] = field(default_factory=dict)
    within: dict[str, float] = field(default_factory=dict)
    below_bound: bool = False
    metric: str | None = None
    where: dict[str, str] = field(default_factory=dict)


@dataclass
class Entry:
    """A figure or a table.

    `panels` are the settings that have a panel for each of their values, `lines` those that make a
    line or a row; of all others that vary, the best value is taken for each line. The metric that
    comes first decides. `figure` is `curves` of that metric, or `bars` of the last values of all,
    with the paper's numbers beside them. `seeds` is a number of them: the first ones that the
    experiment lists.
    """

    what: str
    title: str
    parts: list[Part]
    metrics: list[str]
    axis: str = "round"
    panels: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=lambda: ["algorithm"])
    seeds: dict[str, int] = field(default_factory=dict)
    overrides: dict[str, list[str]] = field(default_factory=dict)
    figure: str = "curves"
    bounds: bool = False
    numbers: list[Numbers] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Slip:
    """Where a paper contradicts itself or leaves something open: both readings, and ours."""

    where: str
    printed: str
    read: str


@dataclass
class Paper:
    """A paper: its entries by name."""

    title: str
    entries: dict[str, Entry]
    slips: list[Slip] = field(default_factory=list)


@cache
def papers() -> dict[str, Paper]:
    """All of them, by name."""
    folder = files("fedsys.reproduce") / "papers"
    found = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            found[file.name.removesuffix(".yaml")] = read_paper(file.read_text(), file.name)
    return found


def read_paper(text: str, name: str) -> Paper:
    """A file of papers/, checked against the types above."""
    try:
        typed = OmegaConf.merge(OmegaConf.structured(Paper), OmegaConf.create(text))
        paper: Any = OmegaConf.to_object(typed)
    except OmegaConfBaseException as error:
        raise InputError(f"{name}: {str(error).splitlines()[0]}") from error
    assert isinstance(paper, Paper)
    for entry_name, entry in paper.entries.items():
        _check(entry, f"{name}: {entry_name}")
    return paper


def _check(entry: Entry, name: str) -> None:
    for claim in entry.claims:
        kinds = [claim.better, claim.reaches, claim.within, claim.below_bound]
        ways = [claim.to is not None, claim.sooner, claim.on_average]
        unclear = sum(ways) > 1 or (any(ways) and not claim.better)
        incomplete = bool(claim.better) != bool(claim.than) or unclear
        if sum(map(bool, kinds)) != 1 or incomplete:
            raise InputError(f"{name}: {claim.says!r} needs one comparison that decides it")
    for table in (entry.seeds, entry.overrides):
        if wrong := set(table) - set(SCALES):
            raise InputError(f"{name}: there is no scale {wrong.pop()!r}, but {', '.join(SCALES)}")
    if entry.figure not in FIGURES:
        raise InputError(f"{name}: a figure is of {' or '.join(FIGURES)}, not {entry.figure!r}")
    if not entry.parts or not entry.metrics:
        raise InputError(f"{name}: an entry has parts and metrics")


def entries() -> Mapping[str, Entry]:
    """All entries by name."""
    return {name: entry for paper in papers().values() for name, entry in paper.entries.items()}


def entry_named(name: str) -> Entry:
    """One of them, or an answer that lists them."""
    from difflib import get_close_matches

    known = entries()
    if name not in known:
        close = get_close_matches(name, known, n=1)
        advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise InputError(f"no figure or table is named {name!r}; {advice} (list shows them)")
    return known[name]
