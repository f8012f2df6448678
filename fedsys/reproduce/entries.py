"""The figures and tables to reproduce, read from papers/<paper>/entries.yaml and validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedsys.core.errors import InputError

SCALES = ("small", "paper")
FIGURES = ("curves", "bars")


@dataclass
class Part:
    """An experiment of conf/experiment; its sweep defines the runs."""

    experiment: str
    title: str = ""
    overrides: list[str] = field(default_factory=list)


@dataclass
class Numbers:
    """The values that the paper prints for a metric, by line; `where` selects the panels."""

    metric: str
    values: dict[str, float]
    where: dict[str, str] = field(default_factory=dict)
    source: str = "paper"


@dataclass
class Claim:
    """A sentence of the paper, and the comparison that decides whether it holds.

    Exactly one of these:

    - `better` and `than`: one line is better than the others. Last values decide; with `to`, the
      line that reaches this value first; with `sooner`, the line that first reaches the worst of
      the last values; with `on_average`, the mean of all values after the first.
    - `either` and `than`: the best of several lines is better than the others.
    - `reaches`: each line reaches its value.
    - `within`: the worst line is worse than the best by at most this factor.
    - `below_bound`: every line ends below the bound of its theorem.
    """

    says: str
    better: str | None = None
    either: list[str] = field(default_factory=list)
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

    Each value of the settings in `panels` has a panel, and each value of those in `lines` a line or
    a row. For every other setting that varies, the best value is chosen for each line by the first
    of `metrics`. `figure` is `curves` of that metric, or `bars` of the last values of all metrics
    with the paper's numbers beside them; metrics in `also` appear in the table only. `seeds` is the
    number of seeds at each scale; the first seeds that the experiment lists are used.
    """

    what: str
    title: str
    parts: list[Part]
    metrics: list[str]
    also: list[str] = field(default_factory=list)
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
    """A place where a paper contradicts itself or leaves something open, and our reading."""

    where: str
    printed: str
    read: str


@dataclass
class Paper:
    """A paper, and its entries by name; `venue` includes the year, `arxiv` is the id."""

    title: str
    entries: dict[str, Entry]
    authors: str = ""
    venue: str = ""
    arxiv: str = ""
    slips: list[Slip] = field(default_factory=list)

    @property
    def citation(self) -> str:
        """Authors, title, venue and arXiv id in one line of markdown."""
        link = f"[arXiv:{self.arxiv}](https://arxiv.org/abs/{self.arxiv})"
        return f"{self.authors}. *{self.title}*. {self.venue}. {link}"


def folder() -> Path:
    """Return papers/, which is beside the package in the repository and inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "papers"
    return inside if inside.is_dir() else package.parent / "papers"


@cache
def papers() -> dict[str, Paper]:
    """Return all papers by the names of their folders."""
    files = sorted(folder().glob("*/entries.yaml"))
    if not files:
        raise InputError(f"no paper found: there is no {folder()}/*/entries.yaml")
    names = [file.parent.name for file in files]
    return {
        name: read_paper(file.read_text(encoding="utf-8"), f"papers/{name}/entries.yaml")
        for name, file in zip(names, files, strict=True)
    }


def read_paper(text: str, name: str) -> Paper:
    """Return the paper that an entries.yaml describes, checked against the types above."""
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
        kinds = [claim.better, claim.either, claim.reaches, claim.within, claim.below_bound]
        ways = [claim.to is not None, claim.sooner, claim.on_average]
        unclear = sum(ways) > 1 or (any(ways) and not claim.better)
        incomplete = bool(claim.better or claim.either) != bool(claim.than) or unclear
        if sum(map(bool, kinds)) != 1 or incomplete:
            raise InputError(f"{name}: claim {claim.says!r} needs one comparison that decides it")
    for table in (entry.seeds, entry.overrides):
        if wrong := set(table) - set(SCALES):
            raise InputError(
                f"{name}: unknown scale {wrong.pop()!r}; choose from {', '.join(SCALES)}"
            )
    if entry.figure not in FIGURES:
        raise InputError(f"{name}: figure must be {' or '.join(FIGURES)}, got {entry.figure!r}")
    if not entry.parts or not entry.metrics:
        raise InputError(f"{name}: an entry needs parts and metrics")


def entries() -> Mapping[str, Entry]:
    """Return the entries of all papers by name."""
    return {name: entry for paper in papers().values() for name, entry in paper.entries.items()}


def entry_named(name: str) -> Entry:
    """Return an entry; raise an error that suggests or lists the known names."""
    from difflib import get_close_matches

    known = entries()
    if name not in known:
        close = get_close_matches(name, known, n=1)
        advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise InputError(
            f"no figure or table is named {name!r}; {advice} (see fedsys-reproduce list)"
        )
    return known[name]
