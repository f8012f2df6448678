"""Jobs on a SLURM cluster of two nodes: preemption, requeueing before the time limit, a sweep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.runs import (
    PATIENCE,
    REPOSITORY,
    SETTINGS,
    assert_same_variables,
    environment,
    freeze_after_checkpoint,
    run_in_one_process,
    thaw,
)
from cluster.slurm import Slurm

pytestmark = pytest.mark.timeout(3 * PATIENCE)

SCRIPT = REPOSITORY / "launch" / "slurm.sbatch"


def submit(slurm: Slurm, folder: Path, *options: str) -> str:
    output = f"--output={folder.with_suffix('.out')}"
    run = (*SETTINGS, f"run.dir={folder}")
    variables = environment() | {"RANKS": "2", "IFNAME": "eth0"}
    return slurm.submit(output, f"--chdir={folder.parent}", *options, SCRIPT, *run, **variables)


def output_of(folder: Path) -> str:
    return folder.with_suffix(".out").read_text()


def test_a_preempted_torchrun_job_continues_when_the_nodes_are_free(
    slurm: Slurm, tmp_path: Path, reference: Path
) -> None:
    folder = tmp_path / "preempted"
    job = submit(slurm, folder, "--partition=low", "--exclusive")
    freeze_after_checkpoint(folder)  # SLURM sends SIGCONT before SIGTERM
    urgent = slurm.submit(
        "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"
    )
    assert slurm.wait(urgent, PATIENCE)["JobState"] == "COMPLETED"
    fields = slurm.wait(job, PATIENCE)
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), output_of(folder)
    assert "4 clients on 4 ranks by gloo" in output_of(folder)
    assert "continued from step" in output_of(folder)
    assert_same_variables(folder, reference)


def test_a_job_of_plain_tasks_is_requeued_before_its_time_limit(
    slurm: Slurm, tmp_path: Path, reference: Path
) -> None:
    folder = tmp_path / "requeued"
    job = submit(slurm, folder, "--ntasks-per-node=2", "--cpus-per-task=1")
    frozen = freeze_after_checkpoint(folder)
    slurm.signal(job, "USR1")
    thaw(frozen)
    fields = slurm.wait(job, PATIENCE)
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), output_of(folder)
    assert f"slurm.sbatch: job {job} goes back into the queue" in output_of(folder)
    assert "continued from step" in output_of(folder)
    assert_same_variables(folder, reference)


def test_a_sweep_submits_one_job_per_run(slurm: Slurm, tmp_path: Path) -> None:
    short = (*SETTINGS, "rounds=20", "seed=3")
    sweep = ("--multirun", "hydra/launcher=submitit_slurm", "algorithm.local_steps=5,10")
    nodes = ("partition=low", "nodes=2", "tasks_per_node=1", "timeout_min=10")
    options = [
        f"hydra.sweep.dir={tmp_path}/sweep",
        *(f"hydra.launcher.{option}" for option in nodes),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "fedsys", *sweep, *options, *short],
        cwd=tmp_path,
        env=environment() | slurm.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for number, steps in enumerate((5, 10)):
        alone = tmp_path / f"alone-{steps}"
        run_in_one_process(alone, *short, f"algorithm.local_steps={steps}")
        assert_same_variables(tmp_path / "sweep" / str(number), alone)
        assert '"ranks": 2' in (tmp_path / "sweep" / str(number) / "summary.json").read_text()
