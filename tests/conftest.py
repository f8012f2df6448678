from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Runs in this process and those that it starts: threads that wait for each other on busy cores
# take ten times as long as none.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings
from support.processes import Done, Ranks

from fedsys.cli.main import main

# A failure on one machine is a failure on all.
settings.register_profile("fedsys", derandomize=True)
settings.load_profile("fedsys")


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Processes that stay for the whole session: `ranks(4, job, *args)`."""
    team = Ranks()
    yield team
    team.close()


@pytest.fixture
def fedsys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """`fedsys ...` in an empty folder, in this process: starting Python each time takes minutes."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["fedsys", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, *capfd.readouterr())

    return run


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """As many threads as a rank of the placement tests has, and none to fight over."""
    torch.set_num_threads(1)
