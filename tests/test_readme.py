"""The README: what it shows runs as it stands there and prints what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fedsys
from fedsys import config
from fedsys.problems import BilinearGame

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(language: str, text: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, in one process and one thread."""
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    clean = {name: value for name, value in os.environ.items() if name not in ranks}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**clean, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def test_the_problem_of_your_own_prints_what_the_readme_says(tmp_path: Path) -> None:
    text = section("In Python: a problem of your own")
    (script,), (printed,) = blocks("python", text), blocks("text", text)
    assert len(script.splitlines()) <= 18, "about fifteen lines"
    (tmp_path / "script.py").write_text(script)
    done = run(tmp_path, "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


@pytest.fixture
def own_algorithm(tmp_path: Path) -> Path:
    """A folder with the algorithm of the README and its configuration."""
    text = section("An algorithm of your own")
    (code,), (yaml,) = blocks("python", text), blocks("yaml", text)
    (tmp_path / "local_optimistic.py").write_text(code)
    (tmp_path / "mine" / "algorithm").mkdir(parents=True)
    (tmp_path / "mine" / "algorithm" / "local_optimistic.yaml").write_text(yaml)
    return tmp_path


def promised() -> tuple[list[str], float, float]:
    """The command of the README, and the two errors it speaks of."""
    text = section("An algorithm of your own")
    (command,) = blocks("console", text)
    ours, theirs = re.search(
        r"`relative_error` (\S+); `local_sgda` .*? ends\s+with\s+(\S+)\. ", text, flags=re.DOTALL
    ).groups()  # type: ignore[union-attr]
    return shlex.split(command)[2:], float(ours), float(theirs)


def test_the_algorithm_of_your_own_ends_where_the_readme_says(own_algorithm: Path) -> None:
    arguments, ours, _ = promised()
    done = run(own_algorithm, *arguments, "run.dir=run")
    assert done.returncode == 0, done.stderr
    final = json.loads((own_algorithm / "run" / "summary.json").read_text())["final"]
    assert final["relative_error"] == pytest.approx(ours, rel=0.01)


def test_local_sgda_ends_where_the_readme_says() -> None:
    _, _, theirs = promised()
    algorithm = fedsys.LocalSGDA(lr_x=0.2, lr_y=0.2, local_steps=5)
    records = fedsys.run(BilinearGame(), algorithm, rounds=100, clients=4).records
    assert records[-1]["relative_error"] == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize(
    ("group", "title"),
    [
        ("algorithm", "Algorithms"),
        ("problem", "Problems"),
        ("model", "Models"),
        ("dataset", "Data sets"),
        ("partition", "Partitions"),
        ("communicator", "Communicators"),
    ],
)
def test_the_readme_names_every_option_of(group: str, title: str) -> None:
    files = (config.folder() / group).glob("*.yaml")
    text = section(title)
    assert [file.stem for file in files if f"`{file.stem}`" not in text] == []


def test_the_files_to_read_are_there() -> None:
    named = re.findall(r"\b(?:fedsys|launch|docker)/[\w/]+(?:\.\w+)+", README)
    root = Path(__file__).resolve().parents[1]
    assert len(named) > 10
    assert [path for path in named if not (root / path).is_file()] == []
