"""Three hosts on a network; one of them is disconnected or dies, and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.hosts import INTERFACE, Hosts
from cluster.runs import (
    PATIENCE,
    assert_same_variables,
    children,
    freeze_after_checkpoint,
    log_of,
    newest_checkpoint,
    ranks_of,
    start_torchrun,
    thaw,
    wait_until,
)

SECRET = "a secret of the three hosts"

pytestmark = pytest.mark.timeout(3 * PATIENCE)


class Launchers:
    """launch/torchrun.sh on every host; a launcher that fails is restarted, as by systemd.

    Args:
        hosts: the hosts.
        folder: the run directory.
        nodes: NNODES, a number or MIN:MAX.
    """

    def __init__(self, hosts: Hosts, folder: Path, nodes: str) -> None:
        self.hosts, self.folder, self._nodes = hosts, folder, nodes
        self._running = {name: self._start(name) for name in hosts.names}

    def output(self, name: str) -> str:
        """Return the output of the launcher of a host and of its rank."""
        return log_of(self.folder, name).read_text()

    def kill(self, name: str) -> None:
        """Kill the launcher of a host and its rank, as a power failure would."""
        launcher = self._running.pop(name)
        for process in (launcher.pid, *children(launcher.pid)):
            os.kill(process, signal.SIGKILL)
        launcher.wait()

    def start(self, name: str) -> None:
        """Start a launcher on a host whose launcher was killed."""
        self._running[name] = self._start(name)

    def wait(self, seconds: float) -> None:
        """Wait until all launchers have succeeded."""
        deadline = time.monotonic() + seconds
        while any(launcher.poll() != 0 for launcher in self._running.values()):
            output = "\n".join(f"{name}: {self.output(name)}" for name in self.hosts.names)
            assert time.monotonic() < deadline, f"not finished within {seconds} s\n{output}"
            for name, launcher in self._running.items():
                if launcher.poll() not in (None, 0):
                    self._running[name] = self._start(name)
            time.sleep(0.5)

    def close(self) -> None:
        """Terminate the remaining launchers and their ranks."""
        for launcher in self._running.values():
            launcher.terminate()
        for launcher in self._running.values():
            try:
                launcher.wait(60)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
        for process in ranks_of(self.folder.name):
            os.kill(process, signal.SIGKILL)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        variables = {
            "NNODES": self._nodes,
            "RANKS": "1",
            "RDZV_ENDPOINT": "host1:29400",
            "IFNAME": INTERFACE,
            "MAX_RESTARTS": "3",
            "FEDSYS_SECRET": SECRET,
        }
        return start_torchrun(self.hosts, name, self.folder, variables, "communicator.timeout=15")


@pytest.fixture(scope="module")
def hosts(make_hosts: Callable[[int], Hosts]) -> Hosts:
    return make_hosts(3)


@contextmanager
def launched(hosts: Hosts, folder: Path, nodes: str) -> Iterator[Launchers]:
    launchers = Launchers(hosts, folder, nodes)
    try:
        yield launchers
    finally:
        launchers.close()


def lose_host3(launchers: Launchers, lose: Callable[[str], None], message: str) -> None:
    """Lose host3 after a checkpoint, and wait until one of the others prints a message."""
    frozen = freeze_after_checkpoint(launchers.folder)
    lose("host3")
    thaw(frozen)
    others = ("host1", "host2")
    wait_until(
        f"the message {message!r}",
        lambda: any(message in launchers.output(name) for name in others),
        PATIENCE,
    )


def test_after_a_host_was_disconnected_and_came_back_the_result_is_that_of_an_undisturbed_run(
    hosts: Hosts, tmp_path: Path, reference: Path
) -> None:
    folder = tmp_path / "three-hosts"
    with launched(hosts, folder, "3") as launchers:
        lose_host3(launchers, hosts.cut_off, "(host3) is lost")
        hosts.restore("host3")
        launchers.wait(PATIENCE)
        assert any("continued from step" in launchers.output(name) for name in hosts.names)
    assert_same_variables(folder, reference)


def test_the_other_hosts_take_over_the_clients_of_a_dead_host_until_it_comes_back(
    hosts: Hosts, tmp_path: Path, reference: Path
) -> None:
    folder = tmp_path / "one-to-three-hosts"
    with launched(hosts, folder, "1:3") as launchers:
        lose_host3(launchers, launchers.kill, "4 clients on 2 ranks")
        # The launchers terminate the stopped rank when host3 joins.
        freeze_after_checkpoint(folder, newest_checkpoint(folder))
        launchers.start("host3")
        launchers.wait(PATIENCE)
    assert json.loads((folder / "summary.json").read_text())["ranks"] == 3
    assert_same_variables(folder, reference)
