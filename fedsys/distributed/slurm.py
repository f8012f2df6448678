"""Derive torchrun's variables from those of SLURM, for `srun python -m fedsys`."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Below the ports that the kernel gives to outgoing connections.
_FIRST_PORT, _PORTS = 15_000, 15_000


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return RANK, WORLD_SIZE, ... of a task of a job step; nothing elsewhere or under torchrun.

    A batch script has SLURM_PROCID and SLURM_NTASKS, too, but is a single process: only srun sets
    the variables that begin with SLURM_STEP_.
    """
    if "WORLD_SIZE" in environment or int(environment.get("SLURM_STEP_NUM_TASKS", 1)) < 2:
        return {}
    tasks = _tasks_of_nodes(environment["SLURM_STEP_TASKS_PER_NODE"])
    # A job of seven steps has seven ports, none of them of the next job.
    meeting = 7 * int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])
    found = {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(tasks[int(environment["SLURM_NODEID"])]),
        "MASTER_ADDR": first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(_FIRST_PORT + meeting % _PORTS),
    }
    return {name: environment.get(name, value) for name, value in found.items()}


def first_host(nodes: str) -> str:
    """Return the first host of SLURM's compressed list: n07 of n[07-09,12],m1."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    assert first is not None
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


def _tasks_of_nodes(counts: str) -> list[int]:
    """Expand SLURM's counts: 2(x3),1 is [2, 2, 2, 1]."""
    tasks: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        tasks += [int(count)] * int(times or 1)
    return tasks
