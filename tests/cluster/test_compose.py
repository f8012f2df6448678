"""docker/compose.yaml with one container per client, of which one is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.containers import Engine, collect_wheels
from cluster.runs import (
    PATIENCE,
    SETTINGS,
    assert_same_variables,
    freeze_after_checkpoint,
    thaw,
    wait_until,
)

pytestmark = pytest.mark.timeout(3 * PATIENCE)

PROJECT = f"fedsys-test-{os.getpid()}"
CLIENTS = 4


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Return an engine that has built the image."""
    folder = tmp_path_factory.mktemp("engine")
    engine = Engine(folder)
    if engine.missing():
        pytest.fail(engine.missing())
    try:
        base = engine.base_image(folder)
    except OSError as error:
        pytest.fail(f"no base image: {error}")
    collect_wheels()
    engine.compose(PROJECT, "build", BASE=base, PIP_ARGS="--no-index")
    return engine


@pytest.fixture
def run_folder(engine: Engine, tmp_path: Path) -> Iterator[Path]:
    """Start the containers and yield their run directory."""
    runs, data = tmp_path / "runs", tmp_path / "data"
    for folder in (runs, data):
        folder.mkdir()
        os.chown(folder, 1000, 1000)
    name = f"run-{os.getpid()}"
    variables = {
        "ARGS": " ".join((*SETTINGS, "communicator.timeout=15")),
        "CLIENTS": str(CLIENTS),
        "RUN": name,
        "RUNS": str(runs),
        "DATA": str(data),
    }
    try:
        engine.compose(PROJECT, "up", "-d", **variables)
        yield runs / name
    finally:
        engine.compose(PROJECT, "down", "--volumes", "--timeout", "20", **variables)


def logs(engine: Engine) -> str:
    clients = engine.containers(PROJECT, "client")
    return "\n".join(f"{c['Name']}: {engine.say('logs', c['Id'])}" for c in clients)


def test_a_killed_container_is_restarted_and_the_result_is_that_of_an_undisturbed_run(
    engine: Engine, run_folder: Path, reference: Path
) -> None:
    frozen = freeze_after_checkpoint(run_folder)
    clients = engine.containers(PROJECT, "client")
    assert len(clients) == CLIENTS
    assert engine.is_healthy(clients[0])
    assert engine.say("exec", clients[0]["Id"], "id", "-u") == "1000"
    # As in a power failure: the engine is not involved in the kill, and restarts the container.
    os.kill(clients[-1]["State"]["Pid"], signal.SIGKILL)
    thaw(frozen)

    def has_ended() -> bool:
        states = [
            container["State"]
            for service in ("client", "rendezvous")
            for container in engine.containers(PROJECT, service)
        ]
        return all(state["Status"] == "exited" and state["ExitCode"] == 0 for state in states)

    try:
        wait_until("the end of all containers", has_ended, PATIENCE)
    except TimeoutError as error:
        raise AssertionError(logs(engine)) from error
    assert "continued from step" in logs(engine)
    assert_same_variables(run_folder, reference)
