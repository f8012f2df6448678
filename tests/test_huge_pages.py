"""Large tensors come in large pages, unless the user said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NAME = "THP_MEM_ALLOC_ENABLE"


PROGRAM = f"""
import os, sys

class Watch:
    def find_spec(self, name, *others):
        if name == "torch":
            print(os.environ[{NAME!r}])

sys.meta_path.insert(0, Watch())
import fedsys
"""


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_torch_finds_the_choice_made_when_it_is_imported(given: str | None, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != NAME}
    if given is not None:
        environment[NAME] = given
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [expected]
