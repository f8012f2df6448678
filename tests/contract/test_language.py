"""The words of the repository: papers are cited, and names that were replaced do not come back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LISTS = ("tests/contract/test_language.py", "CHANGELOG.md")
"""This file, and the history, which says what a name was before."""

# Papers are cited by authors, title, venue and arXiv id, never by the name of a text file.
PAPER_FILES = (
    "adafgda", "fedbio", "localscgdam", "proxskip-vip", "faster-rates-federated-vi",
)  # fmt: skip

# Names as whole words of Python code, and what replaced them.
RETIRED = {
    r"riders?|_boarding": "synchronised buffers",
    r"[Dd]eal|deals|deal_files|_feed_the_empty": "partition, ClientSplit, partition_files",
    r"roll_call|_BELL|last_words": "failure_detector",
    r"AtOnce|Judge|bends": "BatchedClients, GroupMetrics, second_derivatives",
    r"Interruption|Portable|InBackground": "StopSignal, PicklableJob, BackgroundLogger",
    r"HostTransport": "SharedMemoryTransport",
    r"needs_all_clients": "full_participation",
    r"terms_of_bounds|_LESSON|_TOO_MUCH": "names that say the quantity and the unit",
}
# Common words, which only what communicates and runs no longer has as names.
RETIRED_DEFINITIONS = {
    r"aside|at_start": "unmetered, initial",
    r"remember": "load_state",
    r"wire": "choose_transport",
    r"together": "on_all_ranks",
    r"share": "from_first_rank",
    r"tell|say": "report_failure, print_error",
    r"moment|began": "run_timestamp",
    r"Search": "NonFiniteLocator",
}


def tracked(*patterns: str) -> list[Path]:
    """The files of the repository that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = (REPOSITORY / name for name in listed.splitlines() if name not in LISTS)
    return [path for path in paths if path.is_file()]


def mentions(pattern: str, files: list[Path]) -> list[str]:
    """path:line of every match of a pattern."""
    found = []
    for file in files:
        text = file.read_bytes().decode(errors="replace")
        if re.search(pattern, text):
            lines = enumerate(text.splitlines(), start=1)
            name = file.relative_to(REPOSITORY)
            found += [f"{name}:{number}" for number, line in lines if re.search(pattern, line)]
    return found


def test_no_file_names_the_text_of_a_paper() -> None:
    assert mentions(rf"\b({'|'.join(PAPER_FILES)})\.txt\b", tracked()) == []


@pytest.mark.parametrize("names", RETIRED)
def test_a_retired_name_is_gone(names: str) -> None:
    files = tracked("fedsys/*.py", "benchmarks/*.py", "tests/*.py")
    assert mentions(rf"(?<![\w-])({names})(?!\w)", files) == [], f"now {RETIRED[names]}"


@pytest.mark.parametrize("names", RETIRED_DEFINITIONS)
def test_nothing_is_defined_under_a_retired_name(names: str) -> None:
    folders = ("core", "communication", "distributed", "training", "cli")
    files = tracked(*(f"fedsys/{folder}/*.py" for folder in folders))
    pattern = rf"\b(def|class) ({names})\b|\b(world|communicator)\.({names})\("
    assert mentions(pattern, files) == [], f"now {RETIRED_DEFINITIONS[names]}"
