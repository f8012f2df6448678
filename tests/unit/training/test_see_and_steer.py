"""What a user sees and gives: steps, trajectories, coins, draws, and the calls of oracles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.processes import Ranks
from torch import Tensor

import fedsys
from fedsys.algorithms import (
    FGDA,
    LESGD,
    LSGD,
    FedBiO,
    FedGDAGT,
    LocalSEG,
    LocalSGDA,
    ProxSkip,
    ProxSkipLSVRGDA,
    Scaffold,
)
from fedsys.communication import AllReduce
from fedsys.core.algorithm import Algorithm, State
from fedsys.core.errors import InputError
from fedsys.core.oracles import Oracle, Problem
from fedsys.core.site import Site
from fedsys.distributed.world import World
from fedsys.problems import (
    HeterogeneousToy,
    MinimisationProblem,
    QuadraticBilevel,
    QuadraticGame,
    TwoPoints,
)
from fedsys.problems.games.affine import AffineOracle
from fedsys.training.api import default_communicator, make_site
from fedsys.training.checkpoint import Checkpoints
from fedsys.training.plan import Plan
from fedsys.training.runner import Runner

TWO = TwoPoints(delta=4.0)
"""F_1(z) = z - (4, 0) and F_2(z) = z - (0, 4), from (1, 1)."""


def run(problem: Problem[Oracle], algorithm: Algorithm[Any, Any], **settings: Any) -> Any:
    return fedsys.run(problem, algorithm, **{"clients": 2, "dtype": "float64", **settings})


# Steps and trajectories.


def test_a_trajectory_has_the_states_of_all_clients_at_the_chosen_steps() -> None:
    # lr = 1/2 halves the distance to the own point; the second step averages.
    result = run(TWO, LSGD(lr=0.5, local_steps=2), steps=3, trajectory=[0, 1, 2])
    assert sorted(result.trajectory) == [0, 1, 2]
    z = {step: state["z"].tolist() for step, state in result.trajectory.items()}
    assert z[0] == [[1, 1], [1, 1]]
    assert z[1] == [[2.5, 0.5], [0.5, 2.5]]
    assert z[2] == [[1.75, 1.75], [1.75, 1.75]]


def test_trajectory_true_has_every_step_and_ends_with_the_final_state() -> None:
    result = run(TWO, LocalSGDA(lr_x=0.5, lr_y=0.5, local_steps=2), steps=5, trajectory=True)
    assert list(result.trajectory) == [0, 1, 2, 3, 4, 5]
    for name, rows in result.state.tensors().items():
        assert torch.equal(result.trajectory[5][name], rows)
    rows = result.trajectory[5]["x"].requires_grad_()
    rows.sum().backward()  # a copy that autograd can use


def test_without_trajectory_nothing_is_collected() -> None:
    assert run(TWO, LSGD(lr=0.5), steps=3).trajectory == {}


def test_on_step_is_called_after_every_step_with_its_number_and_the_state() -> None:
    seen: list[tuple[int, list[float]]] = []

    def see(step: int, state: State) -> None:
        seen.append((step, state.tensors()["z"][0].tolist()))

    run(TWO, LSGD(lr=0.5, local_steps=2), steps=2, on_step=see)
    assert seen == [(1, [2.5, 0.5]), (2, [1.75, 1.75])]


def test_a_trajectory_that_is_no_collection_is_refused() -> None:
    with pytest.raises(InputError, match="trajectory must be true, false or a collection"):
        run(TWO, LSGD(lr=0.5), steps=1, trajectory=3)


def _trajectory(steps: list[int]) -> dict[int, Tensor]:
    found = run(HeterogeneousToy(dim=2), LSGD(lr=0.1, local_steps=2), steps=3, trajectory=steps,
                clients=3).trajectory  # fmt: skip
    return {step: state["z"] for step, state in found.items()}


def test_a_trajectory_does_not_depend_on_the_placement(ranks: Ranks) -> None:
    alone = _trajectory([1, 3])
    for found in ranks(2, _trajectory, [1, 3]):
        for step, rows in alone.items():
            assert rows.shape == (3, 4)
            torch.testing.assert_close(found[step], rows, rtol=0, atol=1e-12)


# Coins.


@pytest.mark.parametrize("coins", [[False, True], lambda step: step == 1, {"sync": [0, 1]}])
def test_given_coins_decide_when_clients_communicate(coins: Any) -> None:
    # Step 1: x = (2.5, 0.5) and (0.5, 2.5). Step 2: x^ = (3.25, 0.25) and (0.25, 3.25), whose mean
    # is (1.75, 1.75); h = p/lr (x - x^) = (-1.5, 1.5) and (1.5, -1.5).
    result = run(TWO, ProxSkip(lr=0.5, p=0.5), steps=2, coins=coins, trajectory=[1])
    assert result.trajectory[1]["x"].tolist() == [[2.5, 0.5], [0.5, 2.5]]
    assert result.state.x.tolist() == [[1.75, 1.75], [1.75, 1.75]]
    assert result.state.h.tolist() == [[-1.5, 1.5], [1.5, -1.5]]


def test_several_coins_are_given_by_name() -> None:
    given: Any = {"sync": [True, False, True], "reference": [False, True, False]}
    algorithm = ProxSkipLSVRGDA(lr=0.1, p=0.5, q=0.5)
    by_name = run(TWO, algorithm, steps=3, coins=given, trajectory=True)
    called = run(TWO, algorithm, steps=3, coins=lambda step, name: given[name][step])
    assert torch.equal(by_name.state.x, called.state.x)
    w = [by_name.trajectory[step]["w"].tolist() for step in range(4)]
    assert w[0] == w[1] != w[2] == w[3]  # the second step takes a new reference point
    assert w[2] == by_name.trajectory[1]["x"].tolist()


@pytest.mark.parametrize(
    ("algorithm", "coins", "message"),
    [
        (ProxSkip(lr=0.1, p=0.5), [True], "coins: 1 steps are given and the run has more"),
        (ProxSkip(lr=0.1, p=0.5), {"x": [1]}, "coins: the algorithm flips 'sync', got 'x'"),
        (LSGD(lr=0.1), [True], "coins= is for algorithms that flip shared coins, and LSGD"),
    ],
)
def test_coins_that_do_not_fit_are_refused(
    algorithm: Algorithm[Any, Any], coins: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(TWO, algorithm, steps=3, coins=coins)


def test_coins_without_heads_never_communicate() -> None:
    result = run(TWO, ProxSkip(lr=0.5, p=0.5), steps=1100, coins=lambda step: step == 1090)
    assert [record["step"] for record in result.records] == [0, 1091, 1100]
    assert result.records[-1]["exchanges"] == 1


def test_coins_need_a_communicator_that_flips_them() -> None:
    with pytest.raises(InputError, match="coins= needs communicator=SkipCoin"):
        run(TWO, ProxSkip(lr=0.1, p=0.5), steps=3, coins=[1, 1, 1], communicator=AllReduce())


# Draws.

TARGETS = np.array([[[1.0, 0.0], [2.0, 0.0], [4.0, 0.0]], [[0.0, 1.0], [0.0, 2.0], [0.0, 4.0]]])


@dataclass(frozen=True)
class Targets:
    """F_mi(z) = z - a_mi, for 2 clients with 3 samples each, from 0."""

    batch_size: int | None = 1

    def oracle(self, site: Site) -> AffineOracle:
        """Return the oracle."""
        games = [(np.stack([np.eye(2)] * 3), -TARGETS[client]) for client in site.hosted]
        return AffineOracle(site, games, split=1, batch_size=self.batch_size)


def test_given_draws_choose_the_samples() -> None:
    # Client 0 takes samples 0, 1 and client 1 samples 1, 2: z = a/2, then (z + a)/2.
    result = run(
        Targets(), LSGD(lr=0.5, local_steps=9), steps=2, draws=lambda client, step, k: client + step
    )
    assert result.state.z.tolist() == [[1.25, 0], [0, 2.5]]


def test_a_batch_is_given_by_its_indices_and_k_counts_the_draws_of_a_step() -> None:
    seen = []

    def draws(client: int, step: int, k: int) -> list[int]:
        seen.append((client, step, k))
        return [0, 2]  # the mean target is 2.5

    result = run(Targets(2), LocalSEG(lr=1.0, local_steps=9), steps=1, draws=draws)
    assert result.state.z.tolist() == [[0, 0], [0, 0]]  # from 2.5 the second step goes back
    assert seen == [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]


@pytest.mark.parametrize("given", [3, -1, 0.5, [0, 1]])
def test_a_draw_that_is_no_sample_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="draws: 1 of the samples 0 to 2 must be given for"):
        run(Targets(), LSGD(lr=0.5), steps=1, draws=lambda client, step, k: given)


@pytest.mark.parametrize("problem", [Targets(None), QuadraticBilevel()])
def test_draws_are_refused_where_there_are_no_samples_to_choose(problem: Any) -> None:
    algorithm = FedBiO() if isinstance(problem, QuadraticBilevel) else LSGD(lr=0.1)
    with pytest.raises(InputError, match="draws= is for"):
        run(problem, algorithm, steps=1, draws=lambda client, step, k: 0)


# The calls of oracles.

GAME = QuadraticGame(dim=2, samples=10, batch_size=2)


@pytest.mark.parametrize(
    ("algorithm", "first", "calls"),
    [
        (LSGD(lr=0.01, local_steps=3), 0, 1),
        (LESGD(lr=0.01, local_steps=3), 0, 2),
        (LocalSEG(lr=0.01, local_steps=3), 0, 2),
        (ProxSkip(lr=0.01, p=0.5), 0, 1),
        (LocalSGDA(local_steps=3), 0, 1),
        # q = 3 gradients before the first step, then two per step.
        (FGDA(lr_x=0.01, lr_y=0.01, local_steps=3), 3, 2),
        # A pass over 10 samples costs 5 draws of 2: one before the first step, one per step, and
        # one more per round of 3 steps.
        (FedGDAGT(lr=0.01, local_steps=3), 5, 5 + 5 / 3),
    ],
)
def test_records_count_the_operators_and_gradients_of_a_client(
    algorithm: Algorithm[Any, Any], first: int, calls: float
) -> None:
    records = run(GAME, algorithm, steps=6).records
    assert records[0]["oracle_calls"] == first
    assert records[-1]["oracle_calls"] == pytest.approx(first + 6 * calls, rel=1e-12)


def test_a_new_reference_point_costs_a_pass_over_the_data() -> None:
    coins: Any = {"sync": [1, 1, 1], "reference": [0, 1, 0]}
    records = run(GAME, ProxSkipLSVRGDA(lr=0.01, p=0.5, q=0.5), steps=3, coins=coins).records
    assert [record["oracle_calls"] for record in records] == [5, 7, 14, 16]


def test_evaluation_does_not_count() -> None:
    often = run(GAME, LESGD(lr=0.01, local_steps=1), steps=6).records
    once = run(GAME, LESGD(lr=0.01, local_steps=1), steps=6, evaluate_every=6).records
    assert len(often) > len(once)
    assert often[-1]["oracle_calls"] == once[-1]["oracle_calls"] == 12


def test_functions_of_a_user_are_counted() -> None:
    problem = MinimisationProblem(lambda x, client, rng: x.square().sum(), torch.ones(2))
    records = run(problem, Scaffold(lr=0.1, local_steps=2, option=1), steps=4).records
    assert records[-1]["oracle_calls"] == 4 + 2  # and one gradient per round for c_i


def test_a_bilevel_step_counts_its_gradients_and_its_products_with_second_derivatives() -> None:
    problem = QuadraticBilevel()
    records = run(problem, FedBiO(local_steps=1), steps=2).records
    per_step = records[-1]["oracle_calls"] - records[-2]["oracle_calls"]
    assert per_step > 3


def _rounds(folder: Path, rounds: int) -> list[dict[str, float]]:
    algorithm = ProxSkipLSVRGDA(lr=0.01, p=0.5, q=0.3)
    world = World.from_environment()
    site = make_site(world, 2, 3, "float64", "cpu")
    checkpoints = Checkpoints(folder, world, every=1)
    given = default_communicator(algorithm), world, site, Plan(rounds=rounds)
    runner = Runner(GAME, algorithm, *given, checkpoints=checkpoints)
    runner.prepare()
    return runner.run().records


def test_a_resumed_run_continues_the_count(tmp_path: Path) -> None:
    whole = _rounds(tmp_path / "whole", 6)
    _rounds(tmp_path / "parts", 3)
    resumed = _rounds(tmp_path / "parts", 6)
    assert resumed[0]["step"] > 0
    expected = {record["step"]: record["oracle_calls"] for record in whole}
    for record in resumed:
        assert record["oracle_calls"] == expected[record["step"]] > 0
