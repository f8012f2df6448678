"""Jobs of a real SLURM with two nodes: their end, their preemption, and what the queue gives back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.runs import (
    REPOSITORY,
    SETTINGS,
    assert_same_variables,
    environment,
    is_under_way,
    wait_until,
)
from tests.cluster.slurm import Slurm

pytestmark = pytest.mark.timeout(400)

SCRIPT = REPOSITORY / "launch" / "slurm.sbatch"


def submit(slurm: Slurm, folder: Path, *options: str) -> str:
    output = f"--output={folder.with_suffix('.out')}"
    run = (*SETTINGS, f"run.dir={folder}")
    variables = environment() | {"RANKS": "2", "IFNAME": "eth0"}
    return slurm.submit(output, f"--chdir={folder.parent}", *options, SCRIPT, *run, **variables)


def said(folder: Path) -> str:
    return folder.with_suffix(".out").read_text()


def test_a_preempted_torchrun_job_goes_on_when_the_nodes_are_free(
    slurm: Slurm, tmp_path: Path, reference: Path
) -> None:
    folder = tmp_path / "run"
    job = submit(slurm, folder, "--partition=low", "--exclusive")
    wait_until("a checkpoint of the job", lambda: is_under_way(folder), 120)
    urgent = slurm.submit(
        "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"
    )
    assert slurm.wait(urgent, 120)["JobState"] == "COMPLETED"
    seen = slurm.wait(job, 200)
    assert (seen["JobState"], seen["Restarts"]) == ("COMPLETED", "1"), said(folder)
    assert "4 clients on 4 ranks by gloo" in said(folder)
    assert "continued from step" in said(folder)
    assert_same_variables(folder, reference)


def test_a_job_of_plain_tasks_is_requeued_before_its_time_is_over(
    slurm: Slurm, tmp_path: Path, reference: Path
) -> None:
    folder = tmp_path / "run"
    job = submit(slurm, folder, "--ntasks-per-node=2", "--cpus-per-task=1")
    wait_until("a checkpoint of the job", lambda: is_under_way(folder), 120)
    slurm.signal(job, "USR1")
    seen = slurm.wait(job, 200)
    assert (seen["JobState"], seen["Restarts"]) == ("COMPLETED", "1"), said(folder)
    assert f"slurm.sbatch: job {job} goes back into the queue" in said(folder)
    assert "continued from step" in said(folder)
    assert_same_variables(folder, reference)
