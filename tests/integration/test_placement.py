"""Results do not depend on the placement: one process, one per client, and all in between."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from support.cases import CASES, CLIENTS, SEED, Drive
from support.processes import Ranks, connected

from fedsys.communication import Transport
from fedsys.distributed.world import World
from fedsys.training.api import default_communicator, make_site
from fedsys.training.plan import Plan
from fedsys.training.runner import Runner

STEPS = 17
KEPT = (0, 1, 5, 12, 17)
CLOCKS = ("seconds", "seconds_waited")
PLACEMENTS = {"1x6": 1, "2x3": 2, "3x2": 3, "4 ranks, uneven": 4, "6x1": 6}
NAMES = list(CASES)
pytestmark = pytest.mark.timeout(300)  # one setup makes all runs, of up to 6 processes each


def walk(
    name: str, transport: Transport
) -> tuple[dict[int, dict[str, torch.Tensor]], dict[str, float]]:
    """Some states of all hosted clients (and their synchronised buffers), and the traffic."""
    drive = Drive(CASES[name], transport)
    kept = {}
    for step, state in enumerate(drive.states(STEPS)):
        if step in KEPT:
            rows = dict(state.tensors())
            if drive.oracle.synchronised_buffers is not None:
                rows["synchronised_buffers"] = drive.oracle.synchronised_buffers
            kept[step] = {field: value.clone() for field, value in rows.items()}
    return kept, asdict(drive.communicator.traffic)


def record(name: str, world: World) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """A whole run as `fedsys.run` makes it, but all of them in one process group.

    A process group for each of the cases takes most of the time of these tests.
    """
    case = CASES[name]
    site = make_site(world, CLIENTS, SEED, "float64", "auto")
    communicator, plan = default_communicator(case.algorithm), Plan(steps=STEPS)
    runner = Runner(case.problem, case.algorithm, communicator, world, site, plan)
    runner.prepare()
    result = runner.run()
    return result.records, result.variables


def walk_and_record(names: list[str]) -> dict[str, Any]:
    with connected() as world:
        return {name: (*record(name, world), *walk(name, world.transport)) for name in names}


@pytest.fixture(scope="module")
def runs(ranks: Ranks) -> dict[str, list[dict[str, Any]]]:
    """The results of every case on each rank of each placement."""
    return {where: ranks(size, walk_and_record, NAMES) for where, size in PLACEMENTS.items()}


def joined(answers: list[dict[str, Any]], name: str) -> dict[int, dict[str, torch.Tensor]]:
    """The states of all clients, from the ranks that hosted them."""
    parts = [answer[name][2] for answer in answers]
    return {
        step: {field: torch.cat([part[step][field] for part in parts]) for field in parts[0][step]}
        for step in KEPT
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", [w for w in PLACEMENTS if w != "1x6"])
class TestAnyPlacementGivesTheNumbersOfOneProcess:
    def test_the_state_of_every_client_is_the_same_to_1e_12(
        self, runs: dict[str, list[dict[str, Any]]], where: str, name: str
    ) -> None:
        expected, actual = joined(runs["1x6"], name), joined(runs[where], name)
        for step in KEPT:
            for field, rows in expected[step].items():
                assert len(rows) == CLIENTS
                torch.testing.assert_close(actual[step][field], rows, rtol=1e-12, atol=1e-12)

    def test_the_records_are_the_same_to_1e_12_on_every_rank_that_has_the_number(
        self, runs: dict[str, list[dict[str, Any]]], where: str, name: str
    ) -> None:
        expected = runs["1x6"][0][name][0]
        assert expected[-1]["step"] == STEPS
        assert runs[where][0][name][0][-1].keys() == expected[-1].keys()
        for answer in runs[where]:
            for mine, theirs in zip(answer[name][0], expected, strict=True):
                for key in mine.keys() - set(CLOCKS):
                    assert mine[key] == pytest.approx(theirs[key], rel=1e-12, abs=1e-12), key

    def test_the_final_variables_are_the_same_to_1e_12(
        self, runs: dict[str, list[dict[str, Any]]], where: str, name: str
    ) -> None:
        expected = runs["1x6"][0][name][1]
        for answer in runs[where]:
            torch.testing.assert_close(answer[name][1], expected, rtol=1e-12, atol=1e-12)

    def test_the_traffic_of_a_client_is_the_same(
        self, runs: dict[str, list[dict[str, Any]]], where: str, name: str
    ) -> None:
        expected = {**runs["1x6"][0][name][3], "seconds_waited": 0.0}
        assert expected["exchanges"] > 0
        for answer in runs[where]:
            assert {**answer[name][3], "seconds_waited": 0.0} == expected


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].has_local_steps])
def test_the_case_moves_its_clients_apart_and_brings_them_together(
    runs: dict[str, list[dict[str, Any]]], name: str
) -> None:
    records = runs["1x6"][0][name][0]
    assert records[0]["drift"] < 1e-25
    assert max(record["drift"] for record in records) > 1e-9
