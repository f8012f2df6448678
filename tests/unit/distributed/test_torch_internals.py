"""With a version of torch that fedsys was not tested with, plain torchrun starts the ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedsys.distributed import parent, torch_internals, world
from fedsys.distributed.gloo_guard import guarded

REPOSITORY = Path(__file__).resolve().parents[3]
UNKNOWN = "99.1.0"
GAME = ("algorithm=local_sgda", "problem=quadratic_game", "clients=2", "rounds=2")


def run_with_unknown_torch(
    folder: Path, *command: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python command in which every process believes to have another torch."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import torch\ntorch.__version__ = {UNKNOWN!r}\n")
    paths = os.pathsep.join([str(site), str(REPOSITORY)])
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
    )


def test_a_job_runs_to_its_end_under_plain_torchrun_with_one_warning(tmp_path: Path) -> None:
    launch = ("-m", "fedsys.launch", "--standalone", "--nproc-per-node=2")
    done = run_with_unknown_torch(tmp_path, *launch, *GAME, "run.dir=run")
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "warning" in line.lower()]
    assert len(warnings) == 1, done.stderr
    tested = ", ".join(torch_internals.TESTED_VERSIONS)
    start = f"fedsys: warning: fedsys was tested with torch {tested}, not with {UNKNOWN}: "
    assert warnings[0].startswith(start)
    assert "plain torchrun" in warnings[0]
    assert (tmp_path / "run" / "metrics.jsonl").exists()


def test_an_invalid_configuration_still_fails_and_says_why(tmp_path: Path) -> None:
    launch = ("-m", "fedsys.launch", "--standalone", "--nproc-per-node=2")
    done = run_with_unknown_torch(tmp_path, *launch, "algorithm=nonsense")
    assert done.returncode == 1
    assert "fedsys: algorithm=nonsense is unknown; choose one of " in done.stderr


def test_a_tested_version_may_have_any_patch_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for version, expected in (("2.13.1+cpu", True), ("2.1.3", False), (UNKNOWN, False)):
        monkeypatch.setattr(torch, "__version__", version)
        assert torch_internals.is_tested() is expected


def test_a_version_named_in_the_environment_counts_as_tested() -> None:
    ask = "from fedsys.distributed.torch_internals import *; print(TESTED_VERSIONS, is_tested())"
    for named in ("", "2.15.0"):
        done = subprocess.run(
            [sys.executable, "-c", f"import torch; torch.__version__ = '2.15.1'\n{ask}"],
            cwd=REPOSITORY,
            env={**os.environ, "FEDSYS_TESTED_TORCH": named},
            capture_output=True,
            text=True,
        )
        expected = "('2.13', '2.15') True" if named else "('2.13',) False"
        assert done.stdout.strip() == expected, done.stderr


def test_gloo_is_left_as_it_is_in_an_unknown_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    c10d = torch.distributed.distributed_c10d
    plain = c10d.ProcessGroupGloo
    with guarded(None):
        assert c10d.ProcessGroupGloo is not plain
    monkeypatch.setattr(torch, "__version__", UNKNOWN)
    with guarded(None):
        assert c10d.ProcessGroupGloo is plain


def test_ranks_warn_only_if_no_launcher_of_fedsys_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(parent.LAUNCHER, raising=False)
    world._warn_of_untested_torch()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(torch, "__version__", UNKNOWN)
    world._warn_of_untested_torch()
    assert "gloo's ports accept connections from other hosts" in capsys.readouterr().err
    monkeypatch.setenv(parent.LAUNCHER, "1")
    world._warn_of_untested_torch()
    assert capsys.readouterr().err == ""
