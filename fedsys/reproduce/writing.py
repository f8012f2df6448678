"""REPRODUCTION.md: what the papers claim beside what was measured, from results only."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedsys.errors import InputError
from fedsys.reproduce.entries import SCALES, Entry, Paper, papers
from fedsys.reproduce.results import Result, table
from fedsys.runtime.run_directory import write
from fedsys.table import markdown

_FOLDER = "reproduction"
_NOT_RUN = "not run yet"

Results = Mapping[tuple[str, str], Result]

_HEAD = """# Reproduction

The figures and tables of the five papers, as `fedsys-reproduce NAME` makes them; this page is
written by `fedsys-reproduce write` from what those runs printed. A claim is decided by last values
or, where it or the numbers say so, by who is the first to get to a value, or by the mean over the
rounds: "holds" compares means over the seeds, and says nothing of significance; equal is not
better. scale=small is cut down to minutes on two cores, scale=paper is the size of the papers."""


def publish(root: Path, into: Path) -> Path:
    """Copy the results of whole entries to `into`/reproduction, and write the page from all there.

    What was published before stays until its entry has been run again, here or elsewhere.
    """
    folder = into / _FOLDER
    for scale in SCALES:
        for paper in papers().values():
            for name in paper.entries:
                _copy(root / scale / name, folder, f"{name}{'' if scale == 'small' else '-paper'}")
    results = {(r.name, r.scale): r for p in sorted(folder.glob("*.json")) for r in [_load(p)]}
    path = into / "REPRODUCTION.md"
    into.mkdir(parents=True, exist_ok=True)
    write(path, "\n".join(_page(results)) + "\n")
    return path


def _copy(made: Path, folder: Path, stem: str) -> None:
    if (made / "result.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made / "result.json", folder / f"{stem}.json")
        shutil.copyfile(made / "figure.png", folder / f"{stem}.png")


def _load(path: Path) -> Result:
    try:
        return Result.load(path)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is no result of fedsys-reproduce: {error}") from error


def _page(results: Results) -> Iterator[str]:
    yield _HEAD
    yield ""
    yield markdown(_overview(results))
    for paper in papers().values():
        yield f"\n## {paper.title}"
        for name, entry in paper.entries.items():
            yield from _section(name, entry, [r for r in results.values() if r.name == name])
        yield from _slips(paper)


def _overview(results: Results) -> Iterator[list[str]]:
    yield ["entry", "what", "scale", "claims that hold", "runs", "machine", "commit", "date"]
    yield ["---"] * 8
    for paper in papers().values():
        for name, entry in paper.entries.items():
            what = f"{entry.what}: {entry.title}"
            found = [result for result in results.values() if result.name == name]
            if not found:
                yield [f"`{name}`", what, "-", _NOT_RUN, "-", "-", "-", "-"]
            for r in found:
                held = sum(v.holds for v in r.verdicts)
                claims = f"{held} of {len(r.verdicts)}" + (", incomplete" if r.missing else "")
                runs = f"{r.runs}, {r.seconds / 60:.0f} min added up"
                where = [", ".join(r.machines), ", ".join(r.commits), r.date]
                yield [f"`{name}`", what, r.scale, claims, runs, *where]


def _section(name: str, entry: Entry, found: Sequence[Result]) -> Iterator[str]:
    yield f"\n### {entry.what}: {entry.title}"
    yield f"\n    fedsys-reproduce {name}"
    if not found:
        yield f"\nThe paper: {'; '.join(dict.fromkeys(c.says for c in entry.claims))}."
        yield f"Measured: {_NOT_RUN}."
    for result in found:
        stem = f"{name}{'' if result.scale == 'small' else '-paper'}"
        if len(found) > 1 or result.scale != "small":
            yield f"\nscale={result.scale}:"
        if result.verdicts:
            yield ""
            yield markdown(_verdicts(result))
        if result.missing:
            yield f"\nRuns that failed: {'; '.join(result.missing)}."
        yield f"\n![{entry.what}]({_FOLDER}/{stem}.png)\n"
        yield table(result)
    if entry.notes:
        yield "\n" + "\n".join(f"- {note}" for note in entry.notes)


def _verdicts(result: Result) -> Iterator[list[str]]:
    yield ["the paper", "here", "measured", ""]
    yield ["---"] * 4
    for verdict in result.verdicts:
        text = "holds" if verdict.holds else "**differs**"
        yield [verdict.says, verdict.panel or "-", verdict.numbers, text]


def _slips(paper: Paper) -> Iterator[str]:
    if paper.slips:
        rows = [[slip.where, slip.printed, slip.read] for slip in paper.slips]
        yield "\n### Slips and what the paper leaves open\n"
        yield markdown([["where", "as printed", "how we read it"], ["---"] * 3, *rows])
