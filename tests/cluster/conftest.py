"""Fixtures of the cluster tests, which `make test-cluster` runs and `make test` does not."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.hosts import Hosts
from cluster.runs import SETTINGS, run_in_one_process
from cluster.slurm import Slurm


def pytest_sessionstart() -> None:
    """Turn SIGTERM into KeyboardInterrupt, so that daemons, hosts and containers are removed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def need(*programs: str) -> None:
    """Fail, and do not skip, if this machine cannot run the cluster tests."""
    if os.geteuid() != 0:
        pytest.fail("the cluster tests need root to create hosts and to start SLURM")
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.fail(f"missing programs: {', '.join(missing)}")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run directory of the same settings in a single process."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    run_in_one_process(folder, *SETTINGS)
    return folder


@pytest.fixture(scope="module")
def make_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Hosts]]:
    """Yield a function that creates hosts with their own names and addresses."""
    need("ip", "nsenter", "unshare")
    made: list[Hosts] = []

    def make(count: int) -> Hosts:
        made.append(Hosts(count, tmp_path_factory.mktemp("hosts")))
        try:
            made[-1].open()
        except OSError as error:
            pytest.fail(f"cannot create hosts on this machine: {error}")
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()


@pytest.fixture(scope="module")
def slurm(
    make_hosts: Callable[[int], Hosts], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Slurm]:
    """Yield a SLURM cluster with two nodes."""
    need("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
    cluster = Slurm(make_hosts(2), tmp_path_factory.mktemp("slurm"))
    try:
        cluster.open()
        yield cluster
    finally:
        cluster.close()
