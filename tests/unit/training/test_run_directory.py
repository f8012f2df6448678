"""The run directory: one run at a time, and an answer when the disk is full."""

from __future__ import annotations

import io
import os
import resource
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Timer
from time import monotonic

import pytest
from support.processes import Ranks

from fedsys.cli.main import main
from fedsys.core.errors import InputError
from fedsys.training.console import waiting_lines
from fedsys.training.run_directory import RunDirectory

GAME = (
    "algorithm=local_sgda",
    "problem=quadratic_game",
    "problem.dim=500",
    "problem.samples=2",
    "clients=3",
    "evaluate_every=5",
    "checkpoint.every=5",
    "run.name=full",
)
NO_LIMIT = resource.RLIM_INFINITY


def with_files_up_to(limit: int, folder: Path, *arguments: str) -> tuple[int, str]:
    """`fedsys ...` where no file can grow larger: its exit code and what it says of that."""
    os.chdir(folder)
    sys.argv = ["fedsys", *GAME, *arguments]
    said = io.StringIO()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            main()
    except SystemExit as ended:
        return int(ended.code or 0), said.getvalue()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    raise AssertionError("it did not end")


def test_a_full_disk_ends_a_run_with_one_line_and_the_run_can_be_resumed(
    ranks: Ranks, tmp_path: Path
) -> None:
    ((code, said),) = ranks(1, with_files_up_to, 100, tmp_path, "rounds=5")
    assert code == 1
    assert said.startswith("fedsys: cannot write to the run directory")
    assert "File too large; free some space and start the run again" in said
    assert len(said.splitlines()) == 1
    assert ranks(1, with_files_up_to, NO_LIMIT, tmp_path, "rounds=5") == [(0, "")]
    # A checkpoint has 12 kB, everything else less.
    ((code, said),) = ranks(1, with_files_up_to, 8000, tmp_path, "rounds=20")
    assert code == 1
    assert said.startswith("fedsys: cannot write a checkpoint: ")
    assert len(said.splitlines()) == 1
    kept = sorted(path.name for path in (tmp_path / "runs/full/checkpoints").glob("step-*"))
    assert kept == ["step-000000050"]
    assert ranks(1, with_files_up_to, NO_LIMIT, tmp_path, "rounds=20") == [(0, "")]
    assert ranks(1, with_files_up_to, NO_LIMIT, tmp_path, "rounds=20", "run.name=w") == [(0, "")]
    ours, theirs = (tmp_path / "runs" / name / "final.safetensors" for name in ("full", "w"))
    assert ours.read_bytes() == theirs.read_bytes()


def test_a_second_run_in_the_same_directory_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "run")
    first.open({"seed": 1}, resume=True)
    first.begin({"seed": 1}, 0)
    config = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(InputError, match="another run is writing to"):
        RunDirectory(tmp_path / "run").open({"seed": 1, "rounds": 2}, resume=True)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == config
    first.close()
    RunDirectory(tmp_path / "run").open({"seed": 1}, resume=True)


def test_restarted_ranks_wait_until_their_predecessors_release_the_lock(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "run")
    first.open({"seed": 1}, resume=True)
    began = monotonic()
    Timer(0.3, first.close).start()
    RunDirectory(tmp_path / "run").open({"seed": 1}, resume=True, patience=30)
    assert 0.3 <= monotonic() - began < 30


def test_the_summary_begins_with_the_rank_that_the_others_wait_for() -> None:
    waited = {"seconds_waited_by_rank": [3.0, 0.25, 4.0]}
    (line,) = waiting_lines(waited)
    assert line.startswith("waited: rank 1 0.25 s, rank 0 3 s, rank 2 4 s")
    assert waiting_lines({"seconds_waited_by_rank": [1.0]}) == []
