"""Three hosts with a network between them, one of which is cut off, or dies, and comes back."""

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
    REPOSITORY,
    SETTINGS,
    assert_same_variables,
    children,
    environment,
    freeze_after_checkpoint,
    newest_checkpoint,
    ranks_of,
    thaw,
    wait_until,
)

pytestmark = pytest.mark.timeout(3 * PATIENCE)


class Launchers:
    """launch/torchrun.sh on every host; one that ends too early is started again, as by systemd.

    Args:
        hosts: where they run.
        folder: the run directory.
        nodes: NNODES, a number or MIN:MAX.
    """

    def __init__(self, hosts: Hosts, folder: Path, nodes: str) -> None:
        self.hosts, self._folder, self._nodes = hosts, folder, nodes
        self._running = {name: self._start(name) for name in hosts.names}

    def said(self, name: str) -> str:
        """What the launcher of a host and its rank have printed."""
        return (self._folder.parent / f"{name}.out").read_text()

    def kill(self, name: str) -> None:
        """The launcher of a host and its rank, as by a loss of power."""
        launcher = self._running.pop(name)
        for process in (launcher.pid, *children(launcher.pid)):
            os.kill(process, signal.SIGKILL)
        launcher.wait()

    def start(self, name: str) -> None:
        """Once more, on a host whose launcher was killed."""
        self._running[name] = self._start(name)

    def wait(self, seconds: float) -> None:
        """Until all have ended well."""
        deadline = time.monotonic() + seconds
        while any(launcher.poll() != 0 for launcher in self._running.values()):
            said = "\n".join(f"{name}: {self.said(name)}" for name in self.hosts.names)
            assert time.monotonic() < deadline, f"not ended within {seconds} s\n{said}"
            for name, launcher in self._running.items():
                if launcher.poll() not in (None, 0):
                    self._running[name] = self._start(name)
            time.sleep(0.5)

    def close(self) -> None:
        """End what still runs, and the ranks with it."""
        for launcher in self._running.values():
            launcher.terminate()
        for launcher in self._running.values():
            try:
                launcher.wait(60)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
        for process in ranks_of(self._folder.name):
            os.kill(process, signal.SIGKILL)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        script = REPOSITORY / "launch" / "torchrun.sh"
        run = (*SETTINGS, f"run.dir={self._folder}", "communicator.timeout=15")
        where = {"NNODES": self._nodes, "RDZV_ENDPOINT": "host1:29400"}
        how = {"RANKS": "1", "IFNAME": INTERFACE, "MAX_RESTARTS": "3"}
        with (self._folder.parent / f"{name}.out").open("ab") as log:
            return subprocess.Popen(
                self.hosts.on(name, str(script), *run),
                env=environment() | where | how,
                cwd=self._folder.parent,
                stdout=log,
                stderr=log,
            )


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


def test_a_host_that_was_cut_off_comes_back_and_the_run_ends_as_if_it_had_never_left(
    hosts: Hosts, tmp_path: Path, reference: Path
) -> None:
    folder = tmp_path / "three-hosts"
    with launched(hosts, folder, "3") as launchers:
        frozen = freeze_after_checkpoint(folder)
        hosts.cut_off("host3")
        thaw(frozen)
        wait_until(
            "a line that names the lost host",
            lambda: any("(host3) is lost" in launchers.said(name) for name in ("host1", "host2")),
            PATIENCE,
        )
        hosts.restore("host3")
        launchers.wait(PATIENCE)
        assert any("continued from step" in launchers.said(name) for name in hosts.names)
    assert_same_variables(folder, reference)


def test_the_clients_of_a_host_that_died_are_hosted_by_the_others_until_it_comes_back(
    hosts: Hosts, tmp_path: Path, reference: Path
) -> None:
    folder = tmp_path / "one-to-three-hosts"
    with launched(hosts, folder, "1:3") as launchers:
        frozen = freeze_after_checkpoint(folder)
        launchers.kill("host3")
        thaw(frozen)
        wait_until(
            "all clients on two hosts",
            lambda: any("4 clients on 2 ranks" in launchers.said(name) for name in hosts.names),
            PATIENCE,
        )
        freeze_after_checkpoint(folder, newest_checkpoint(folder))  # until the launchers end it
        launchers.start("host3")
        launchers.wait(PATIENCE)
    assert json.loads((folder / "summary.json").read_text())["ranks"] == 3
    assert_same_variables(folder, reference)
