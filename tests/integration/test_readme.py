"""The README: its Python example prints what it says, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from support.processes import run_python

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    """Return the text below a heading, up to the next one."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_the_python_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    text = section("In Python")
    (script,), (printed,) = blocks("python", text), blocks("text", text)
    assert len(script.splitlines()) <= 18, "about fifteen lines"
    (tmp_path / "script.py").write_text(script)
    done = run_python(tmp_path, "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


def test_every_link_of_the_readme_leads_to_a_file_and_a_heading() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", README)
    assert len(links) > 10
    for path, anchor in links:
        assert (ROOT / path).is_file(), path
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), flags=re.MULTILINE)
        assert not anchor or anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_every_file_that_the_readme_names_exists() -> None:
    named = re.findall(r"\b(?:docs|fedsys|launch|docker)/[\w/-]+(?:\.\w+)+", README)
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).is_file()] == []
