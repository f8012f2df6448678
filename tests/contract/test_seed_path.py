"""The path of one number through the package is short enough to be followed."""

from __future__ import annotations

import re
from pathlib import Path

from support.processes import run_python

REPOSITORY = Path(__file__).resolve().parents[2]
MOST_FILES = 25


def test_the_seed_passes_at_most_25_files_from_the_configuration_to_the_report() -> None:
    done = run_python(REPOSITORY, "tests/support/seed_path.py")
    assert done.returncode == 0, done.stderr
    files, counted = re.split(r"^(\d+) files name the seed$", done.stdout, flags=re.MULTILINE)[:2]
    for ends in ("training/config.py", "core/random.py", "report/"):
        assert ends in files, "the path is not the whole one"
    assert int(counted) <= MOST_FILES, done.stdout
