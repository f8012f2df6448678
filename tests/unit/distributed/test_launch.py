"""launch/torchrun.sh: which ranks it starts where, and what it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "launch" / "torchrun.sh"

# Says what it was asked to run, instead of running it.
RECORDER = """#!/bin/sh
[ "$1" = -c ] && exit 0
echo "$@"
echo "$GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """The script in a folder without an environment, beside a python that only records."""
    for folder in ("launch", "bin"):
        (tmp_path / folder).mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(RECORDER)
    python.chmod(0o755)
    return Path(shutil.copy(SCRIPT, tmp_path / "launch"))


def launch(script: Path, *overrides: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{script.parents[1] / 'bin'}:/usr/bin:/bin"
    return subprocess.run(
        [script, *overrides], env={"PATH": path, **variables}, capture_output=True, text=True
    )


def options(script: Path, *overrides: str, **variables: str) -> list[str]:
    """What torchrun gets, up to the border."""
    done = launch(script, *overrides, CUDA_VISIBLE_DEVICES="", **variables)
    assert done.returncode == 0, done.stderr
    command, _ = done.stdout.splitlines()
    own, _, job = command.partition(" -- ")
    assert job == " ".join(overrides)
    assert own.startswith("-m fedsys.launch ")
    return own.split()[2:]


def test_one_host_without_gpus_has_four_ranks(launcher: Path) -> None:
    expected = ["--nnodes=1", "--nproc-per-node=4", "--standalone"]
    assert options(launcher, "clients=8", "rounds=3") == expected


def test_ranks_come_from_the_environment(launcher: Path) -> None:
    assert "--nproc-per-node=2" in options(launcher, "seed=1", RANKS="2")


def test_there_is_a_rank_for_each_visible_gpu(launcher: Path) -> None:
    done = launch(launcher, CUDA_VISIBLE_DEVICES="0,3,5")
    assert "--nproc-per-node=3" in done.stdout


def test_hosts_meet_at_a_given_address(launcher: Path) -> None:
    where = {"NNODES": "3", "NODE_RANK": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
    assert options(launcher, "seed=1", **where)[2:] == [
        "--node-rank=2",
        "--master-addr=10.0.0.1",
        "--master-port=1234",
    ]


def test_hosts_may_come_and_go(launcher: Path) -> None:
    where = {"NNODES": "1:3", "RDZV_ENDPOINT": "first:1234", "MAX_RESTARTS": "5"}
    found = options(launcher, "seed=1", **where)
    assert {"--nnodes=1:3", "--max-restarts=5", "--rdzv-backend=c10d"} <= {*found}


def test_hosts_meet_by_rendezvous(launcher: Path) -> None:
    where = {"NNODES": "2", "RDZV_ENDPOINT": "first:1234", "RDZV_ID": "job7"}
    assert options(launcher, "seed=1", **where)[2:] == [
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=first:1234",
        "--rdzv-id=job7",
    ]


def test_crashed_ranks_are_restarted_max_restarts_times(launcher: Path) -> None:
    assert "--max-restarts=3" in options(launcher, "seed=1", MAX_RESTARTS="3")


@pytest.mark.skipif(shutil.which("ip") is None, reason="there is no ip to ask for an address")
def test_the_address_of_the_chosen_interface_is_published(launcher: Path) -> None:
    where = {"NNODES": "2", "RDZV_ENDPOINT": "first:1234"}
    assert options(launcher, "seed=1", IFNAME="lo", **where)[-1] == "--local-addr=127.0.0.1"
    own = options(launcher, "seed=1", IFNAME="lo", LOCAL_ADDR="10.0.0.7", **where)
    assert own[-1] == "--local-addr=10.0.0.7"


def test_one_interface_serves_both_backends_unless_they_have_their_own(launcher: Path) -> None:
    assert launch(launcher, IFNAME="eth1").stdout.splitlines()[1] == "eth1 eth1"
    own = launch(launcher, IFNAME="eth1", NCCL_SOCKET_IFNAME="ib0")
    assert own.stdout.splitlines()[1] == "eth1 ib0"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"RANKS": "many"}, "RANKS"),
        ({"RANKS": "0"}, "RANKS"),
        ({"NNODES": "-1"}, "NNODES"),
        ({"NNODES": "3:1", "RDZV_ENDPOINT": "a:1"}, "NNODES"),
        ({"NNODES": "1:x", "RDZV_ENDPOINT": "a:1"}, "NNODES"),
        ({"NNODES": "1:3", "NODE_RANK": "0", "MASTER_ADDR": "a"}, "RDZV_ENDPOINT"),
        ({"MAX_RESTARTS": "ever"}, "MAX_RESTARTS"),
        ({"NNODES": "2"}, "MASTER_ADDR"),
        ({"NNODES": "2", "NODE_RANK": "2", "MASTER_ADDR": "a"}, "NODE_RANK"),
        ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "x"}, "MASTER_PORT"),
    ],
)
def test_a_wrong_variable_is_named_in_one_line(
    launcher: Path, variables: dict[str, str], named: str
) -> None:
    done = launch(launcher, **variables)
    assert done.returncode == 2
    assert done.stdout == ""
    assert named in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(shutil.which("ip") is None, reason="there is no ip to ask for an address")
def test_an_interface_that_is_not_there_is_named_in_one_line(launcher: Path) -> None:
    done = launch(launcher, NNODES="2", RDZV_ENDPOINT="first:1234", IFNAME="nonsense7")
    assert done.returncode == 2
    assert "IFNAME" in done.stderr
    assert "'nonsense7'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_explains_every_variable_that_the_script_reads(launcher: Path) -> None:
    done = launch(launcher, "--help")
    assert done.returncode == 0
    ranks = ("RANKS", "MAX_RESTARTS", "IFNAME", "OMP_NUM_THREADS", "FEDSYS_PYTHON")
    hosts = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "RDZV_ENDPOINT", "LOCAL_ADDR")
    for name in (*ranks, *hosts):
        assert name in done.stdout
    assert "set -euo" not in done.stdout


def test_an_invalid_configuration_on_several_ranks_gives_one_line_and_exit_code_2(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [SCRIPT, "algorithm=nonsense"],
        cwd=tmp_path,
        env={**os.environ, "RANKS": "2", "FEDSYS_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("fedsys: algorithm=nonsense is unknown; choose one of ")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
