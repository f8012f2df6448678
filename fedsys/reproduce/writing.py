"""Write the pages of papers/, which compare the claims of the papers with measurements."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedsys.core.errors import InputError
from fedsys.report.table import markdown
from fedsys.reproduce.entries import SCALES, Entry, Paper, papers
from fedsys.reproduce.results import EntryResult, table
from fedsys.training.run_directory import write

_FIGURES = "figures"
_PAGE = "results.md"
_NOT_RUN = "not run yet"
_MANUAL = "<!-- Manually written from here on; `fedsys-reproduce write` keeps this part. -->"

Results = Mapping[tuple[str, str], EntryResult]

_HEAD = """# Reproduction

The figures and tables of the five papers, reproduced by `fedsys-reproduce NAME`. This page and
the generated part of each results.md are written by `fedsys-reproduce write` from the stored
results. A claim is decided by last values or, where the claim or its numbers say so, by which
method reaches a value first, or by the mean over the rounds. "holds" compares means over the seeds
and says nothing about statistical significance; equal is not better. scale=small takes minutes on
two cores; scale=paper uses the sizes of the papers."""


def publish(root: Path, into: Path) -> Path:
    """Copy the results of complete entries to `into`, and write its pages from all results there.

    `into` has a folder for each paper, with results.md and figures/, and README.md as overview.
    Published results are kept until their entry is run again.
    """
    for name, paper in papers().items():
        figures = into / name / _FIGURES
        for scale in SCALES:
            for entry in paper.entries:
                _copy(root / scale / entry, figures, _stem(entry, scale))
        results = _load(figures)
        page = into / name / _PAGE
        page.parent.mkdir(parents=True, exist_ok=True)
        write(page, "\n".join(_page(paper, results)) + "\n" + _manual_text(page))
    overview = into / "README.md"
    write(overview, "\n".join(_overview(into)) + "\n")
    return overview


def _stem(entry: str, scale: str) -> str:
    return f"{entry}{'' if scale == 'small' else '-paper'}"


def _load(figures: Path) -> Results:
    found = [EntryResult.load(path) for path in sorted(figures.glob("*.json"))]
    return {(result.name, result.scale): result for result in found}


def _copy(source: Path, figures: Path, stem: str) -> None:
    if not (source / "result.json").is_file():
        return
    EntryResult.load(source / "result.json")  # raises if the result cannot be read
    try:
        figures.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / "figure.png", figures / f"{stem}.png")
        shutil.copyfile(source / "result.json", figures / f"{stem}.json")
    except OSError as error:
        raise InputError(f"cannot publish {source}: {error}") from error


def _manual_text(page: Path) -> str:
    """Return the part of a page that is written by hand."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    _, marker, kept = text.partition(_MANUAL)
    return f"\n{marker}{kept}" if marker else ""


def _overview(into: Path) -> Iterator[str]:
    papers_table = [["paper", "entries", "claims that hold", "results"], ["---"] * 4]
    entries_table = [
        [
            "entry",
            "figure or table",
            "scale",
            "claims that hold",
            "runs",
            "machine",
            "commit",
            "date",
        ],
        ["---"] * 8,
    ]
    for name, paper in papers().items():
        results = _load(into / name / _FIGURES)
        verdicts = [verdict for result in results.values() for verdict in result.verdicts]
        held = f"{sum(verdict.holds for verdict in verdicts)} of {len(verdicts)}"
        link = f"[{name}]({name}/{_PAGE})"
        papers_table.append([paper.citation, str(len(paper.entries)), held, link])
        entries_table.extend(_overview_rows(paper, results))
    yield _HEAD
    yield ""
    yield markdown(papers_table)
    yield "\n## Entries\n"
    yield markdown(entries_table)


def _overview_rows(paper: Paper, results: Results) -> Iterator[list[str]]:
    for name, entry in paper.entries.items():
        what = f"{entry.what}: {entry.title}"
        found = [result for result in results.values() if result.name == name]
        if not found:
            yield [f"`{name}`", what, "-", _NOT_RUN, "-", "-", "-", "-"]
        for r in found:
            held = sum(v.holds for v in r.verdicts)
            claims = f"{held} of {len(r.verdicts)}" + (", incomplete" if r.missing else "")
            runs = f"{r.runs}, {r.seconds / 60:.0f} min in total"
            where = [", ".join(r.machines), ", ".join(r.commits), r.date]
            yield [f"`{name}`", what, r.scale, claims, runs, *where]


def _page(paper: Paper, results: Results) -> Iterator[str]:
    yield f"# {paper.title}"
    yield f"\n{paper.citation}"
    for name, entry in paper.entries.items():
        yield from _section(name, entry, [r for r in results.values() if r.name == name])
    yield from _slips(paper)


def _section(name: str, entry: Entry, found: Sequence[EntryResult]) -> Iterator[str]:
    yield f"\n## {entry.what}: {entry.title}"
    yield f"\n    fedsys-reproduce {name}"
    if not found:
        yield f"\nClaims of the paper: {'; '.join(dict.fromkeys(c.says for c in entry.claims))}."
        yield f"Measured: {_NOT_RUN}."
    for result in found:
        if len(found) > 1 or result.scale != "small":
            yield f"\nscale={result.scale}:"
        if result.verdicts:
            yield ""
            yield markdown(_verdicts(result))
        if result.missing:
            yield f"\nRuns that failed: {'; '.join(result.missing)}."
        yield f"\n![{entry.what}]({_FIGURES}/{_stem(name, result.scale)}.png)\n"
        yield table(result)
    if entry.notes:
        yield "\n" + "\n".join(f"- {note}" for note in entry.notes)


def _verdicts(result: EntryResult) -> Iterator[list[str]]:
    yield ["claim of the paper", "panel", "measured", ""]
    yield ["---"] * 4
    for verdict in result.verdicts:
        text = "holds" if verdict.holds else "**differs**"
        yield [verdict.says, verdict.panel or "-", verdict.numbers, text]


def _slips(paper: Paper) -> Iterator[str]:
    if paper.slips:
        rows = [[slip.where, slip.printed, slip.read] for slip in paper.slips]
        yield "\n## Slips and open details of the paper\n"
        yield markdown([["where", "as printed", "our reading"], ["---"] * 3, *rows])
