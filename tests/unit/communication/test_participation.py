"""Means of a subset of the clients: partial participation, and dropping non-finite values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import CASES
from support.processes import Done, Ranks, connected
from torch import Tensor

from fedsys.communication import AdaptiveMatrix, AllReduce, Communicator
from fedsys.communication.weights import Participation
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every
from fedsys.distributed.world import World
from fedsys.training.api import make_site
from fedsys.training.plan import Plan
from fedsys.training.runner import Runner

Command = Callable[..., Done]
CLIENTS = 7


def values() -> Tensor:
    return torch.arange(2.0 * CLIENTS, dtype=torch.float64).reshape(CLIENTS, 2) ** 2


def opened(world: World, **options: Any) -> tuple[Communicator, Tensor]:
    """A communicator, and this rank's rows of the values."""
    communicator = AdaptiveMatrix(**options)
    placement = Placement(CLIENTS, world.rank, world.ranks)
    sizes = [client + 1 for client in placement.hosted]
    communicator.open(world.transport, placement, Every(1), seed=3, sizes=sizes)
    return communicator, values()[placement.hosted.start : placement.hosted.stop]


# Participation.


def averages(weights: str) -> tuple[list[list[float]], int]:
    with connected() as world:
        communicator, rows = opened(world, participation=0.4, weights=weights)
        means = [communicator.at(step)(rows)[0].tolist() for step in range(5)]
        (served,) = communicator.at(0).server(lambda mean: 2 * mean, rows)
        assert served[0].tolist() == [2 * value for value in means[0]]
        return means, communicator.traffic.bytes_up


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_all_placements_average_the_clients_that_seed_and_step_choose(
    ranks: Ranks, weights: str
) -> None:
    share = [1.0] * CLIENTS if weights == "uniform" else [float(c + 1) for c in range(CLIENTS)]
    chosen = [Participation(0.4, share, 3).at(step) for step in range(5)]
    expected = [(row @ values().numpy()) for row in chosen]
    for size in (1, 3):
        for means, sent in ranks(size, averages, weights):
            np.testing.assert_allclose(means, expected, rtol=1e-12)
            # 3 of 7 clients send 16 bytes in each of 6 exchanges.
            assert sent == 6 * round(16 * 3 / 7)


@pytest.mark.parametrize("weights", [[1.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
def test_the_average_of_a_round_is_unbiased_and_its_weights_sum_to_one(
    weights: list[float],
) -> None:
    participation = Participation(0.5, weights, seed=1)
    drawn = np.array([participation.at(step) for step in range(4000)])
    np.testing.assert_allclose(drawn.sum(1), 1)
    # The deviation of a mean of 4000 indicators, each at most 1/3: five sigma.
    sigma = drawn.std(0) / math.sqrt(len(drawn))
    assert (abs(drawn.mean(0) - np.array(weights) / sum(weights)) < 5 * sigma).all()


def test_evaluation_is_of_all_clients() -> None:
    communicator, rows = opened(World(), participation=0.2)
    assert torch.equal(communicator.unmetered()(rows), opened(World())[0].unmetered()(rows))


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(InputError, match=r"participation must be in \(0, 1\], got"):
        AllReduce(participation=share)


def test_an_algorithm_that_needs_all_clients_is_refused_with_the_reason() -> None:
    refused = set()
    for name, case in CASES.items():
        if reason := case.algorithm.full_participation:
            refused.add(name.partition("-")[0])
            world = World()
            site = make_site(world, 4, 0, "float64", "cpu")
            communicator = AllReduce(participation=0.5)
            runner = Runner(case.problem, case.algorithm, communicator, world, site, Plan(steps=1))
            with pytest.raises(InputError, match="needs all clients in every round") as no:
                runner.prepare()
            assert reason in str(no.value)
    assert {"scaffold", "proxskip", "fedbio", "sagda"} <= refused
    assert not {"fedavg", "local_sgda", "lsgd"} & refused


def test_a_run_with_some_clients_in_a_round_sends_less(fedsys: Command, tmp_path: Path) -> None:
    game = ("algorithm=local_sgda", "problem=quadratic_game", "problem.dim=3", "clients=10")
    done = fedsys(*game, "rounds=30", "participation=0.3", "run.name=some")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs" / "some" / "summary.json").read_text())
    assert summary["final"]["gap"] < 0.01
    assert summary["final"]["bytes_up"] == 30 * round(0.3 * 6 * 4)
    assert summary["final"]["bytes_down"] == 30 * 6 * 4


# Clients whose values are not finite.


def with_a_nan(victims: list[int]) -> tuple[list[float], int, dict[int, int]]:
    with connected() as world:
        communicator, rows = opened(world, on_nonfinite="drop")
        rows = rows.clone()
        for victim in victims:
            if victim in communicator.placement.hosted:
                rows[communicator.placement.hosted.index(victim), 1] = math.inf
        mean = communicator.at(0)(rows)[0].tolist()
        (served,) = communicator.at(1).server(lambda mean: mean, rows)
        assert served[0].tolist() == mean
        return mean, communicator.traffic.dropped, dict(communicator.dropped)


@pytest.mark.parametrize("size", [1, 3])
def test_a_client_with_a_non_finite_value_is_dropped_from_the_mean(ranks: Ranks, size: int) -> None:
    victims = [0, 5]
    expected = np.delete(values().numpy(), victims, axis=0).mean(0)
    answers = ranks(size, with_a_nan, victims)
    counted: dict[int, int] = {}
    for mean, dropped, mine in answers:
        np.testing.assert_allclose(mean, expected, rtol=1e-12)
        assert dropped == 2 * len(victims)
        counted.update(mine)
    assert counted == {0: 2, 5: 2}


def test_dropping_changes_no_bit_where_all_values_are_finite() -> None:
    for name in ("drop", "stop"):
        communicator, rows = opened(World(), on_nonfinite=name)
        mean = communicator.at(0)(rows)
        assert torch.equal(mean, opened(World())[0].at(0)(rows))


def test_the_mean_is_nan_when_no_client_is_finite() -> None:
    communicator, rows = opened(World(), on_nonfinite="drop")
    assert communicator.at(0)(rows * math.nan).isnan().all()
