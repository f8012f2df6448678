"""docker/compose.yaml: a container per client, one of which is killed."""

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
    """An engine that has the image."""
    folder = tmp_path_factory.mktemp("engine")
    engine = Engine(folder)
    if engine.missing():
        pytest.fail(engine.missing())
    try:
        base = engine.base_image(folder)
    except OSError as error:
        pytest.fail(f"there is no image to build on: {error}")
    collect_wheels()
    engine.compose(PROJECT, "build", BASE=base, PIP_ARGS="--no-index")
    return engine


@pytest.fixture
def run_folder(engine: Engine, tmp_path: Path) -> Iterator[Path]:
    """The run directory of a cluster of containers that has just been started."""
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


def said(engine: Engine) -> str:
    clients = engine.containers(PROJECT, "client")
    return "\n".join(f"{one['Name']}: {engine.say('logs', one['Id'])}" for one in clients)


def test_a_container_that_was_killed_comes_back_and_the_run_ends_as_if_it_had_never_died(
    engine: Engine, run_folder: Path, reference: Path
) -> None:
    frozen = freeze_after_checkpoint(run_folder)
    clients = engine.containers(PROJECT, "client")
    assert len(clients) == CLIENTS
    assert engine.is_healthy(clients[0])
    assert engine.say("exec", clients[0]["Id"], "id", "-u") == "1000"
    # As when its machine lost power: the engine is not asked, and starts it again by itself.
    os.kill(clients[-1]["State"]["Pid"], signal.SIGKILL)
    thaw(frozen)
    everything = [("client", CLIENTS), ("rendezvous", 1)]

    def has_ended() -> bool:
        states = [
            one["State"] for service, _ in everything for one in engine.containers(PROJECT, service)
        ]
        return all(state["Status"] == "exited" and state["ExitCode"] == 0 for state in states)

    try:
        wait_until("the end of all containers", has_ended, PATIENCE)
    except TimeoutError as error:
        raise AssertionError(said(engine)) from error
    assert "continued from step" in said(engine)
    assert_same_variables(run_folder, reference)
