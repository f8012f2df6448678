"""Open ports of a run, and what a process without the secret can do with them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.hosts import INTERFACE, Hosts
from cluster.runs import (
    PATIENCE,
    assert_same_variables,
    environment,
    freeze_after_checkpoint,
    log_of,
    ranks_of,
    start_torchrun,
    thaw,
    wait_until,
)

pytestmark = pytest.mark.timeout(3 * PATIENCE)

SECRET = "a secret of two of three hosts"
ATTACKER = Path(__file__).with_name("attacker.py")


@pytest.fixture(scope="module")
def hosts(make_hosts: Callable[[int], Hosts]) -> Hosts:
    return make_hosts(3)


@contextmanager
def running(
    hosts: Hosts, folder: Path, places: dict[str, dict[str, str]]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run launch/torchrun.sh on some hosts, each with its own variables."""
    timeout = f"communicator.timeout={PATIENCE:.0f}"
    launchers = {
        name: start_torchrun(hosts, name, folder, variables, timeout)
        for name, variables in places.items()
    }
    try:
        yield launchers
    finally:
        for launcher in launchers.values():
            launcher.terminate()
        for launcher in launchers.values():
            launcher.wait(60)


def output(folder: Path, name: str) -> str:
    return log_of(folder, name).read_text()


def listening(hosts: Hosts, name: str) -> set[tuple[str, int]]:
    """Return address and port of every listening socket of a host."""
    command = hosts.on(name, "ss", "--listening", "--tcp", "--udp", "--numeric", "--no-header")
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    places = [row.split()[4].rpartition(":") for row in table.splitlines()]
    return {(address, int(port)) for address, _, port in places}


def attack(hosts: Hosts, origin: str, *targets: str) -> dict[str, Any]:
    """Run the attacker; return the open ports and what it read."""
    command = (sys.executable, str(ATTACKER), *map(hosts.address, targets))
    done = subprocess.run(
        hosts.on(origin, *command), env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_a_run_on_one_host_listens_on_the_loopback_interface_only(
    hosts: Hosts, tmp_path: Path, reference: Path
) -> None:
    folder = tmp_path / "one-host"
    with running(hosts, folder, {"host1": {"RANKS": "2"}}) as launchers:
        frozen = freeze_after_checkpoint(folder)
        found = listening(hosts, "host1")
        assert found
        assert {address for address, _ in found} == {"127.0.0.1"}
        assert attack(hosts, "host3", "host1") == {"open": [], "stolen": {}}
        thaw(frozen)
        assert launchers["host1"].wait(PATIENCE) == 0, output(folder, "host1")
    assert_same_variables(folder, reference)


RENDEZVOUS = {
    "c10d": [{"RDZV_ENDPOINT": "host1:29400"}] * 2,
    "static": [{"MASTER_ADDR": "host1", "NODE_RANK": str(number)} for number in range(2)],
}


def places_of(rendezvous: str) -> dict[str, dict[str, str]]:
    common = {"NNODES": "2", "RANKS": "1", "IFNAME": INTERFACE, "FEDSYS_SECRET": SECRET}
    return {
        name: common | where
        for name, where in zip(("host1", "host2"), RENDEZVOUS[rendezvous], strict=True)
    }


@pytest.mark.parametrize("rendezvous", RENDEZVOUS)
def test_a_process_without_the_secret_cannot_read_write_or_stop_a_run(
    hosts: Hosts, tmp_path: Path, reference: Path, rendezvous: str
) -> None:
    folder = tmp_path / f"two-hosts-{rendezvous}"
    with running(hosts, folder, places_of(rendezvous)) as launchers:
        wait_until("the ranks", lambda: len(ranks_of(folder.name)) >= 2, PATIENCE)
        with ThreadPoolExecutor(1) as pool:  # while the ranks start
            early = pool.submit(attack, hosts, "host3", "host1", "host2")
            frozen = freeze_after_checkpoint(folder)
            assert set(early.result()["stolen"].values()) <= {""}
        for name in ("host1", "host2"):
            own = {"127.0.0.1", hosts.address(name)}
            assert {address for address, _ in listening(hosts, name)} <= own
        result = attack(hosts, "host3", "host1", "host2")
        thaw(frozen)
        codes = {name: launcher.wait(PATIENCE) for name, launcher in launchers.items()}
        assert codes == {"host1": 0, "host2": 0}, output(folder, "host1") + output(folder, "host2")
    assert result["open"]
    assert set(result["stolen"].values()) == {""}
    assert {host for host, _ in result["open"]} == {hosts.address("host1")}
    assert_same_variables(folder, reference)


def test_a_host_with_another_secret_is_refused_and_the_others_continue_without_it(
    hosts: Hosts, tmp_path: Path, reference: Path
) -> None:
    folder = tmp_path / "wrong-secret"
    places = places_of("c10d")
    places["host3"] = places["host2"] | {"FEDSYS_SECRET": "a secret of nobody else"}
    with running(hosts, folder, places) as launchers:
        codes = {name: launcher.wait(PATIENCE) for name, launcher in launchers.items()}
    assert codes == {"host1": 0, "host2": 0, "host3": 2}
    (line,) = output(folder, "host3").splitlines()
    assert line.startswith("fedsys: host1:29400 does not have the secret of this host")
    assert_same_variables(folder, reference)


def test_the_secret_appears_in_no_argument_no_file_and_no_environment_of_a_rank(
    hosts: Hosts, tmp_path: Path
) -> None:
    folder = tmp_path / "hidden-secret"
    with running(hosts, folder, places_of("c10d")) as launchers:
        frozen = freeze_after_checkpoint(folder)
        ranks = ranks_of(folder.name)
        assert len(ranks) >= 2
        for process in ranks:
            assert SECRET not in Path(f"/proc/{process}/environ").read_text(errors="replace")
        for process in (*ranks, *(launcher.pid for launcher in launchers.values())):
            command = Path(f"/proc/{process}/cmdline").read_text()
            assert not re.search(SECRET, command)
        thaw(frozen)
        for launcher in launchers.values():
            assert launcher.wait(PATIENCE) == 0
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(written) > 5
    assert not any(SECRET.encode() in file.read_bytes() for file in written)
    assert os.environ.get("FEDSYS_SECRET") is None
