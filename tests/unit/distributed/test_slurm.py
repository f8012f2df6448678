"""Ranks that srun starts: who they are, and where they meet."""

from __future__ import annotations

import pytest

from fedsys.distributed import slurm
from fedsys.distributed.world import World

# Of task 5 in `srun --ntasks=6` on three nodes, as SLURM 22.05 sets them.
TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2),2",
    "SLURM_STEP_NODELIST": "n[07,09-10],m1",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "3",
}


def test_a_task_of_srun_is_a_rank() -> None:
    world = World.from_environment(TASK)
    assert (world.rank, world.ranks, world.local_rank, world.local_ranks) == (5, 6, 1, 2)


def test_tasks_meet_at_the_first_node_on_a_port_of_their_step() -> None:
    here = slurm.variables(TASK)
    assert here["MASTER_ADDR"] == "n07"
    assert 15_000 <= int(here["MASTER_PORT"]) < 30_000
    others = [("4711", "0"), ("4711", "1"), ("4710", "2"), ("4712", "2")]
    ports = [
        slurm.variables({**TASK, "SLURM_JOB_ID": job, "SLURM_STEP_ID": step})["MASTER_PORT"]
        for job, step in others
    ]
    assert len({here["MASTER_PORT"], *ports}) == 5


def test_an_address_that_the_user_gives_is_kept() -> None:
    assert slurm.variables({**TASK, "MASTER_ADDR": "10.0.0.9"})["MASTER_ADDR"] == "10.0.0.9"


def test_torchruns_variables_take_precedence_over_those_of_slurm() -> None:
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    world = World.from_environment({**TASK, **torchrun})
    assert (world.rank, world.ranks, world.local_rank, world.local_ranks) == (1, 2, 0, 1)


def test_a_batch_script_is_one_process_whatever_its_job_may_start() -> None:
    batch = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_NODEID": "0"}
    assert World.from_environment(batch).ranks == 1


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[07-09,12],m1", "n07"),
        ("r[2-3]n[1,4]-ib,m1", "r2n1-ib"),
        ("gpu-a.cluster,n[1-2]", "gpu-a.cluster"),
    ],
)
def test_the_first_name_of_a_node_list(nodes: str, first: str) -> None:
    assert slurm.first_host(nodes) == first
