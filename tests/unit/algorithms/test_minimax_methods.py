"""What Huang et al. (AISTATS 2024) claim of FGDA and AdaFGDA, and properties of the baselines."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.cases import GAME, Case, Drive
from support.processes import Ranks, connected
from torch import Tensor

from fedsys.algorithms import (
    CDMA,
    FGDA,
    SAGDA,
    AdaBelief,
    AdaFGDA,
    Adam,
    FedNest,
    Identity,
    LocalSGDA,
    LocalSGDAM,
    MomentumLocalSGDA,
)
from fedsys.algorithms.minimax.fgda import READINGS
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.algorithm import Algorithm
from fedsys.core.constants import Constants, Theory
from fedsys.core.errors import InputError
from fedsys.core.schedules import Decreasing
from fedsys.problems import QuadraticGame, SyntheticSaddle, VariationalProblem
from fedsys.problems.games.operator_oracle import OperatorOracle
from fedsys.training.summary import numbers

# Figure 2: 20 clients, full gradients, steps 0.05, rounds of 10 steps.

STEPS = {"lr_x": 0.05, "lr_y": 0.05, "local_steps": 10}
TRACKING = {**STEPS, "eta": 1.0, "alpha": 0.0, "beta": 0.0}
HETEROGENEITY = pytest.mark.parametrize("s", [1.0, 10.0])


def distances(algorithm: Algorithm[Any, Any], s: float, rounds: int) -> list[float]:
    """Squared distances of the mean point to the saddle, after each round."""
    drive = Drive(Case(algorithm, SyntheticSaddle(s=s)), LocalTransport(), clients=20)
    unmetered = drive.communicator.unmetered()
    found = []
    for state in list(drive.states(10 * rounds))[10::10]:
        metrics = drive.oracle.evaluate(unmetered(algorithm.solution(state)), unmetered)
        found.append(metrics["distance_x"] + metrics["distance_y"])
    return found


@HETEROGENEITY
@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [
        (FGDA(**TRACKING), 60),
        (AdaFGDA(**TRACKING, matrix_x=Adam(), matrix_y=Adam()), 105),
        (AdaFGDA(**TRACKING, matrix_x=AdaBelief(), matrix_y=AdaBelief()), 100),
    ],
    ids=["fgda", "adam", "adabelief"],
)
def test_fgda_and_adafgda_converge_linearly_although_the_clients_differ(
    algorithm: Algorithm[Any, Any], rounds: int, s: float
) -> None:
    found = distances(algorithm, s, rounds)
    assert found[-1] < 1e-20
    # Every twenty rounds a fixed share at most is left, from the first rounds to the last digits.
    ends = [d for d in found[9::20] if d > 1e-20]
    assert len(ends) >= 3
    assert all(after < 0.1 * before for before, after in pairwise(ends))


@pytest.mark.parametrize(("s", "floor"), [(1.0, 6e-7), (10.0, 6e-5)])
def test_local_sgda_with_the_same_steps_stalls(s: float, floor: float) -> None:
    found = distances(LocalSGDA(**STEPS), s, rounds=60)
    assert found[-1] == pytest.approx(floor, rel=0.3)
    assert found[-1] == pytest.approx(found[-10], rel=1e-6)


@HETEROGENEITY
def test_only_the_default_reading_of_the_synchronisation_step_reaches_the_saddle(s: float) -> None:
    last = {
        reading: distances(FGDA(**TRACKING, sync_estimator=reading), s, rounds=60)[-1]
        for reading in READINGS
    }
    assert FGDA().sync_estimator == "average"
    assert last["average"] < 1e-20
    assert 1e-9 < last["storm-local"] < last["storm-mean"] < 1e-3
    assert last["carry"] > 1


# The estimators.


def test_one_sample_serves_both_gradient_calls_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    drive = Drive(Case(FGDA(**{**TRACKING, "alpha": 0.5}), GAME), LocalTransport())
    state = drive.start()
    calls: list[Any] = []
    draw, grads = OperatorOracle.draw, OperatorOracle.grads

    def counted_draw(self: OperatorOracle) -> Any:
        calls.append(draw(self))
        return calls[-1]

    def counted_grads(self: OperatorOracle, x: Tensor, y: Tensor, xi: Any) -> Any:
        calls.append(xi)
        return grads(self, x, y, xi)

    monkeypatch.setattr(OperatorOracle, "draw", counted_draw)
    monkeypatch.setattr(OperatorOracle, "grads", counted_grads)
    drive.step(state, 0)
    drawn, first, second = calls
    assert first is drawn
    assert second is drawn


@pytest.mark.parametrize("reading", ["average", "storm-local"])
def test_without_noise_the_mean_estimator_is_the_mean_of_the_gradients(reading: str) -> None:
    algorithm = FGDA(**{**TRACKING, "alpha": 0.3, "beta": 0.6}, sync_estimator=reading)
    drive = Drive(Case(algorithm, SyntheticSaddle(dim=3)), LocalTransport())
    for step, state in enumerate(drive.states(35)):
        # In the state after a communication step of this reading, too.
        gx, gy = drive.oracle.full_grads(state.x, state.y)
        for mean, gradient in ((state.w, gx), (state.v, gy)):
            assert torch.allclose(mean.mean(0), gradient.mean(0), atol=1e-12), step


def test_the_first_estimators_are_means_of_q_samples() -> None:
    drive = Drive(Case(FGDA(**TRACKING), GAME), LocalTransport())
    oracle = drive.oracle.initial()
    pairs = [oracle.grads(oracle.x0, oracle.y0, oracle.draw()) for _ in range(10)]
    state = drive.start()
    assert torch.allclose(state.w, torch.stack([gx for gx, _ in pairs]).mean(0))
    assert torch.allclose(state.v, torch.stack([gy for _, gy in pairs]).mean(0))


# The matrices.


def walks(*algorithms: Algorithm[Any, Any]) -> list[list[dict[str, Tensor]]]:
    """The states of the hosted clients on a noisy game, after each step of each algorithm."""
    found = []
    with connected() as world:
        for algorithm in algorithms:
            drive = Drive(Case(algorithm, GAME), world.transport)
            found.append(
                [
                    {name: rows.clone() for name, rows in state.tensors().items()}
                    for state in drive.states(20)
                ]
            )
    return found


NOISY = {"lr_x": 0.2, "lr_y": 0.1, "eta": 0.9, "alpha": 0.3, "beta": 0.2, "local_steps": 3}


def test_adafgda_with_identity_matrices_is_fgda_bit_for_bit_in_every_reading(ranks: Ranks) -> None:
    identities = {"matrix_x": Identity(), "matrix_y": Identity()}
    adaptive = [AdaFGDA(**NOISY, sync_estimator=r, **identities) for r in READINGS]
    plain = [FGDA(**NOISY, sync_estimator=r) for r in READINGS]
    # On more ranks a reduction may add up in another order than an all-reduction does.
    for rank in ranks(2, walks, *adaptive, *plain):
        for mine, theirs in zip(rank[: len(READINGS)], rank[len(READINGS) :], strict=True):
            for after, expected in zip(mine, theirs, strict=True):
                assert all(torch.equal(after[name], expected[name]) for name in expected)


def test_all_clients_on_all_ranks_hold_the_same_matrices_after_every_step(ranks: Ranks) -> None:
    rules = Adam(floor=0.3), AdaBelief(floor=0.3)
    algorithms = [AdaFGDA(**NOISY, matrix_x=rule, matrix_y=rule) for rule in rules]
    for by_rank in zip(*ranks(3, walks, *algorithms), strict=True):
        seen = set()
        for states in zip(*by_rank, strict=True):
            for name in ("A", "B"):
                first, *others = torch.cat([state[name] for state in states])
                assert all(torch.equal(first, other) for other in others)
                assert first.min() > 0.3
            seen.add(tuple(states[0]["A"][0].tolist()))
        assert len(seen) == 1 + 20 // 3, "a new one in each round, and none between"


def test_the_diagonals_by_hand() -> None:
    first, second = torch.tensor([3.0, -4.0]), torch.tensor([3.0, 0.0])
    adam, belief = Adam(decay=0.75, floor=0.5), AdaBelief(decay=0.75, floor=0.5)
    memory = adam.remember(adam.start(first), first)
    assert adam.diagonal(memory).tolist() == [2.0, 2.5]  # a = (9, 16)/4
    memory = adam.remember(memory, second)
    # a = 3/4 (9, 16)/4 + (9, 0)/4 = (63/16, 3)
    assert adam.diagonal(memory).tolist() == pytest.approx([63**0.5 / 4 + 0.5, 3**0.5 + 0.5])
    memory = belief.remember(belief.start(first), first)
    assert belief.diagonal(memory).tolist() == [2.0, 2.5]
    memory = belief.remember(memory, second)
    # a = 3/4 (9, 16)/4 + (0, 16)/4 = (27/16, 7)
    assert belief.diagonal(memory).tolist() == pytest.approx([27**0.5 / 4 + 0.5, 7**0.5 + 0.5])


@pytest.mark.parametrize("rule", [Adam, AdaBelief])
@pytest.mark.parametrize(("name", "value"), [("decay", 1.0), ("decay", -0.1), ("floor", 0.0)])
def test_a_matrix_that_could_vanish_or_never_change_is_refused(
    rule: Any, name: str, value: float
) -> None:
    with pytest.raises(InputError, match=f"{rule.__name__}: {name} must be .* got {value}"):
        rule(**{name: value})


def test_without_a_server_adafgda_says_which_communicator_it_needs() -> None:
    drive = Drive(Case(AdaFGDA(**NOISY), GAME), LocalTransport())
    drive.communicator = AllReduce()
    with pytest.raises(InputError, match="adaptive_matrix"):
        drive.start()


def test_the_summary_can_tell_the_rules_and_schedules_of_an_algorithm() -> None:
    told = json.loads(json.dumps(numbers(replace(AdaFGDA(), eta=Decreasing(1.0, 8.0, 0.5)))))
    assert told["matrix_x"] == {"decay": 0.9, "floor": 0.03}
    assert told["eta"] == {"scale": 1.0, "offset": 8.0, "power": 0.5}


# Schedules.

THEORY = Theory(Constants(mu=1.0, L=2.0), clients=8, steps=200)


def test_the_schedules_of_fgda_are_those_of_theorem_2() -> None:
    names = ("lr_x", "lr_y", "eta", "alpha", "beta")
    tuned = FGDA(local_steps=1, **dict.fromkeys(names, "theory")).tuned(THEORY)
    assert isinstance(tuned.eta, Decreasing)
    # lambda = 3 sqrt(40) / (32 sqrt(2)), c1 = 2/24 + 18, c2 = 2/24 + 4.5
    c1, c2, lam = 18 + 1 / 12, 4.5 + 1 / 12, 0.4192627457812106
    m = max(8 * c1**3, 8 * (24 * 2**0.5 * lam) ** 3)
    assert tuned.lr_y == pytest.approx(lam)
    for step in (0, 7):
        eta = 2 / (m + step + 1) ** (1 / 3)
        assert tuned.eta.at(step) == pytest.approx(eta)
        assert tuned.alpha.at(step) == pytest.approx(c1 * eta**2)  # type: ignore[union-attr]
        assert tuned.beta.at(step) == pytest.approx(c2 * eta**2)  # type: ignore[union-attr]
    # The smallest term is lambda mu / (16 L), with L = L_f (1 + kappa/2) = 4.
    assert tuned.lr_x == pytest.approx(lam / 64)


def test_momentum_local_sgda_slows_down_with_the_length_of_the_run() -> None:
    by_theory = MomentumLocalSGDA(alpha="theory", beta=3.0)
    assert by_theory.tuned(THEORY).alpha == pytest.approx(0.2)  # sqrt(8 / 200)
    short = replace(THEORY, steps=8)
    assert by_theory.tuned(short).alpha == pytest.approx(1 / 3)  # beta alpha = 1


@pytest.mark.parametrize("name", ["scale", "offset", "power"])
def test_a_schedule_that_does_not_decrease_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be positive, got -1"):
        replace(Decreasing(1.0, 1.0), **{name: -1})


# Reductions and fixed points.


def test_with_alpha_and_beta_1_a_client_on_its_own_does_plain_descent_and_ascent() -> None:
    rates = {"lr_x": 0.1, "lr_y": 0.2, "local_steps": 2}
    game = QuadraticGame(dim=2, samples=3)
    methods = (
        LocalSGDA(**rates),
        FGDA(**rates, eta=1.0, alpha=1.0, beta=1.0),
        MomentumLocalSGDA(**rates, alpha=1.0, beta=1.0),
    )
    walks = [list(Drive(Case(m, game), LocalTransport(), clients=1).states(9)) for m in methods]
    for plain, *others in zip(*walks, strict=True):
        for state in others:
            assert torch.allclose(state.x, plain.x, atol=1e-14)
            assert torch.allclose(state.y, plain.y, atol=1e-14)


def test_fednest_with_single_steps_is_alternating_descent_and_ascent_on_the_mean() -> None:
    algorithm = FedNest(lr_x=0.1, lr_y=0.2, inner_rounds=1, local_steps=1)
    drive = Drive(Case(algorithm, QuadraticGame(dim=2, samples=3)), LocalTransport())
    x, y = drive.oracle.x0, drive.oracle.y0
    for state in list(drive.states(5))[1:]:
        y = y + 0.2 * drive.oracle.full_grads(x, y)[1].mean(0)
        x = x - 0.1 * drive.oracle.full_grads(x, y)[0].mean(0)
        assert torch.allclose(state.x, x, atol=1e-14)
        assert torch.allclose(state.y, y, atol=1e-14)


CORRECTED = {
    "sagda": SAGDA(**STEPS, server_lr=0.7),
    "cdma": CDMA(**STEPS),
    "fednest": FedNest(**STEPS, inner_rounds=2),
}


@pytest.mark.parametrize("name", list(CORRECTED))
def test_without_noise_a_corrected_method_stays_at_the_saddle_and_local_sgda_leaves_it(
    name: str,
) -> None:
    # F_i(z) = (i + 1) z + i (1, -1): the mean operator vanishes at z = -(2/3)(1, -1) for 5 clients.
    shift = torch.tensor([1.0, -1.0], dtype=torch.float64)
    saddle = -2 / 3 * shift
    problem = VariationalProblem(lambda z, i, rng: (i + 1) * z + i * shift, saddle, split=1)

    def farthest(algorithm: Algorithm[Any, Any]) -> float:
        drive = Drive(Case(algorithm, problem), LocalTransport(), clients=5)
        rounds = list(drive.states(20))[10::10]
        return max(float((algorithm.solution(s) - saddle).norm(dim=1).max()) for s in rounds)

    assert farthest(CORRECTED[name]) < 1e-13
    assert farthest(LocalSGDA(**STEPS)) > 1e-3


def test_localsgdam_is_momentum_local_sgda_in_other_letters_up_to_rounding() -> None:
    """alpha = eta, beta = beta_x = beta_y; the moving averages round differently (lerp)."""
    rates = {"local_steps": 3}
    one = MomentumLocalSGDA(lr_x=0.33, lr_y=0.2, alpha=0.3, beta=3.0, **rates)
    other = LocalSGDAM(
        eta=0.3, gamma_x=0.33, gamma_y=0.2, beta_x=3.0, beta_y=3.0, decay_at=(), **rates
    )
    drives = (Drive(Case(each, GAME), LocalTransport()) for each in (one, other))
    for mine, theirs in zip(*(drive.states(30) for drive in drives), strict=True):
        for a, b in (("x", "x"), ("y", "y"), ("dx", "u"), ("dy", "v")):
            torch.testing.assert_close(mine.tensors()[a], theirs.tensors()[b], rtol=0, atol=1e-12)
