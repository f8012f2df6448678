"""Theorem 3.1 of ProxSkip-VIP: its constants by hand, and its inequalities on random problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_games import DIM, SAMPLES, RandomGame
from typing_extensions import override

import fedsys
from fedsys.algorithms import (
    LSVRG,
    SAGA,
    SGDA,
    Averaged,
    Estimator,
    FullOperator,
    ProxSkip,
    ProxSkipLSVRGDA,
    Quantised,
)
from fedsys.communication import AllReduce, LocalTransport, SkipCoin
from fedsys.core.constants import Constants, Theory
from fedsys.core.errors import InputError
from fedsys.core.oracles import Draw
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.core.traffic import Traffic
from fedsys.problems import BilinearGame, CompositeSaddle, QuadraticGame, VariationalProblem
from fedsys.problems.games.affine import AffineOracle
from fedsys.problems.terms import L1, Box
from fedsys.theory import proxskip
from fedsys.theory.proxskip import KeyConstants
from fedsys.training import summary
from fedsys.training.console import theory_lines

CLIENTS = 2

# The constants, by hand.

KNOWN = Constants(
    mu=0.5, ell_exact=2.0, ell_spectral=1.5, ell_samples_exact=4.0, ell_samples_spectral=3.0,
    sigma=0.1, F_star=3.0, dim=16,
)  # fmt: skip
FULL = Theory(KNOWN, clients=10)
SINGLE = Theory(KNOWN, clients=10, finite_sum=True, samples=(4, 5), batch_size=1)


@pytest.mark.parametrize(
    ("estimator", "theory", "expected"),
    [
        # Lemma 3.4: A = L_g, D1 = 2 sigma_*^2 = 2 * 10 * 0.01.
        (SGDA(), SINGLE, KeyConstants(A=4.0, D1=0.2)),
        # Additive noise: ||F(x) - F(x*)||^2 + 10 * 0.01.
        (SGDA(), FULL, KeyConstants(A=1.0, D1=0.1)),
        (FullOperator(), SINGLE, KeyConstants(A=1.0)),
        # Lemma 3.8: A = l, B = 2, C = q l / 2, rho = q.
        (LSVRG(q=0.25), SINGLE, KeyConstants(A=4.0, B=2.0, C=0.5, rho=0.25)),
        # A sample is drawn with chance 1/4 or 1/5: C has the highest, rho the lowest.
        (SAGA(), SINGLE, KeyConstants(A=4.0, B=2.0, C=0.5, rho=0.2)),
        # omega = min(16/16, 4/4) = 1: A = 3 * 1, D1 = 3 * 0.1 + 2 * 10 * 9.
        (Quantised(levels=4), FULL, KeyConstants(A=3.0, D1=180.3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_estimator_declares_the_constants_of_assumption_2_2(
    estimator: Estimator, theory: Theory, expected: KeyConstants
) -> None:
    found = estimator.key_constants(theory)
    for name, value in vars(expected).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-14), name


def test_the_chance_that_one_of_two_draws_is_a_given_sample_of_four() -> None:
    assert proxskip.refresh_chance(4, 2) == pytest.approx(1 - 0.75**2)


def test_corollary_3_2_gives_the_steps_of_the_other_corollaries() -> None:
    ell, mu = 4.0, 0.5
    sgda = KeyConstants(A=ell)
    assert proxskip.unified_step(sgda, mu) == proxskip.proxskip_step(ell, mu) == 1 / 8
    gamma = proxskip.svrgda_step(ell, mu)
    q = proxskip.reference_chance(gamma, mu)
    svrg = proxskip.memory_constants(ell, (q, q))
    assert svrg.weight == pytest.approx(4 / q)
    assert proxskip.unified_step(svrg, mu) == pytest.approx(gamma) == pytest.approx(1 / 24)


def test_theorem_3_1_by_hand() -> None:
    # gamma = 0.1, mu = 0.5, p = 0.3, B = 2, rho = 0.2, M = 20: tau = min(0.05, 0.09, 0.1).
    key = KeyConstants(A=1.0, B=2.0, C=0.1, D1=0.3, D2=0.01, rho=0.2)
    bound = proxskip.lyapunov_bound(key, 0.5, 0.1, 0.3)
    assert bound is not None
    assert bound.tau == pytest.approx(0.05)
    # 0.95^2 * 8 + 0.01 * (0.3 + 0.2) / 0.05
    assert bound.at(2, 8.0) == pytest.approx(7.22 + 0.1)
    # The limit is 1 / (2 (1 + 20 * 0.1)) = 1/6.
    assert proxskip.lyapunov_bound(key, 0.5, 0.17, 0.3) is None
    assert proxskip.lyapunov_bound(key, 0.0, 0.1, 0.3) is None


def test_theory_chooses_the_numbers_of_every_estimator() -> None:
    saga = ProxSkip(estimator="saga", cocoercivity="exact").tuned(SINGLE)
    # min(1/mu, 1/(2 (A + M C)), rho/(2 mu)): M = 20, 1/(2 (4 + 10)) = 1/28.
    assert saga.lr == pytest.approx(1 / 28)
    assert saga.p == pytest.approx(sqrt(0.5 / 28))
    svrg = ProxSkip(estimator="lsvrg", cocoercivity="exact").tuned(SINGLE)
    assert svrg.lr == pytest.approx(1 / 24)
    assert svrg.estimator == LSVRG(q=2 * 0.5 / 24)


def test_a_reference_chance_alone_can_be_left_to_the_theory() -> None:
    algorithm = ProxSkip(lr=0.1, p=0.2, estimator=LSVRG())
    assert algorithm.awaiting_theory() == ["estimator.q"]
    assert algorithm.tuned(SINGLE).estimator == LSVRG(q=0.1)


# Random strongly monotone affine problems.


class ChosenDraws(AffineOracle):
    """The same game, whose draw is given from outside: [C, 1]."""

    chosen: torch.Tensor

    @override
    def draw_sample(self, step: int, k: int) -> Draw:
        return self.chosen


def syncs(reference: bool) -> Iterator[tuple[bool, Sync]]:
    """A real sync that communicates and one that does not."""
    for communicates in (True, False):
        communicator = AllReduce()
        communicator.open(LocalTransport(), Placement(CLIENTS), Every(), 0)
        coins = {"reference": reference}
        yield communicates, Sync(communicator, communicates, Traffic(), 0, coins)


def outcomes(algorithm: ProxSkip, oracle: ChosenDraws, s: Any) -> Iterator[tuple[float, Any]]:
    """Every state that one step can lead to, with its probability."""
    estimator = algorithm._estimator
    p, q = algorithm.p, estimator.coins.get("reference")
    references = [(True, q), (False, 1 - q)] if q else [(False, 1.0)]
    draws = list(product(range(SAMPLES), repeat=CLIENTS)) if oracle.finite_sum else [(0, 0)]
    for picks, (reference, chance) in product(draws, references):
        oracle.chosen = torch.tensor(picks)[:, None]
        for communicates, sync in syncs(reference):
            own = p if communicates else 1 - p
            yield chance * own / len(draws), algorithm.step(s, oracle.at(0), sync)


ENUMERATED = {
    "sgda": (SGDA(), 1),
    "full": (FullOperator(), None),
    "lsvrg": (LSVRG(), 1),
    "saga": (SAGA(), 1),
}


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(list(ENUMERATED)),
    skew=st.floats(0, 2),
    spread=st.floats(0, 1),
    shrink=st.floats(0.3, 1),
    with_terms=st.booleans(),
)
def test_one_step_satisfies_the_recursion_of_theorem_3_1_exactly(
    seed: int, name: str, skew: float, spread: float, shrink: float, with_terms: bool
) -> None:
    """E[V_{t+1}] <= (1 - tau) V_t + gamma^2 (D1 + M D2), over all draws and coins of a step."""
    estimator, batch_size = ENUMERATED[name]
    game = RandomGame(seed, skew, spread, batch_size)
    oracle = game.make(ChosenDraws, Site(Placement(CLIENTS), 0, torch.float64))
    assert isinstance(oracle, ChosenDraws)
    _, sync = next(syncs(False))
    constants = oracle.constants(sync)
    theory = Theory(constants, CLIENTS, finite_sum=oracle.finite_sum, samples=(SAMPLES, SAMPLES))
    algorithm = ProxSkip(estimator=estimator, cocoercivity="exact").tuned(theory)
    algorithm = replace(algorithm, lr=shrink * algorithm.lr, p=min(1.0, algorithm.p / shrink))
    if with_terms:
        oracle = planted(game, oracle, sync)
        theory = replace(theory, constants=oracle.constants(sync))
    guarantee = algorithm.guarantee(theory)
    assert guarantee is not None
    tau = guarantee.bound.tau
    noise = guarantee.bound.neighbourhood * tau
    measured = partial(guarantee.metrics, steps=0, oracle=oracle, sync=sync)
    state = algorithm.init(oracle, sync)
    for _ in range(3):
        V = measured(state)["lyapunov"]
        following = list(outcomes(algorithm, oracle, state))
        expectation = sum(chance * measured(s)["lyapunov"] for chance, s in following)
        assert sum(chance for chance, _ in following) == pytest.approx(1)
        assert expectation <= ((1 - tau) * V + noise) * (1 + 1e-9) + 1e-20
        state = following[seed % len(following)][1]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(list(ENUMERATED)),
    skew=st.floats(0, 2),
    at_solution=st.booleans(),
)
def test_an_estimator_satisfies_both_inequalities_of_assumption_2_2_exactly(
    seed: int, name: str, skew: float, at_solution: bool
) -> None:
    """With its constants, over all draws and reference coins, also where only sigma_t is left."""
    estimator, batch_size = ENUMERATED[name]
    estimator = LSVRG(q=0.3) if name == "lsvrg" else estimator
    game = RandomGame(seed, skew, 1.0, batch_size)
    oracle = game.make(ChosenDraws, Site(Placement(CLIENTS), 0, torch.float64))
    assert isinstance(oracle, ChosenDraws)
    _, sync = next(syncs(False))
    theory = Theory(
        oracle.constants(sync), CLIENTS, finite_sum=oracle.finite_sum, samples=(SAMPLES, SAMPLES)
    )
    key = estimator.key_constants(theory)
    solution = oracle.solution(sync)
    assert solution is not None
    z = solution.expand(CLIENTS, -1).contiguous()
    memory = estimator.start(oracle)
    x = z if at_solution else z + torch.from_numpy(np.random.default_rng(seed).normal(size=z.shape))
    state = estimator.state(x, torch.zeros_like(x), *memory)
    F_z = oracle.full_operator(z)
    product_ = float(((oracle.full_operator(x) - F_z) * (x - z)).sum())
    sigma = float(estimator.deviation(state, oracle, z).sum())
    error = sigma_next = 0.0
    for chance, g, after in estimates(estimator, oracle, state):
        error += chance * float((g - F_z).square().sum())
        new = estimator.state(x, state.h, *after)
        sigma_next += chance * float(estimator.deviation(new, oracle, z).sum())
    room = 1 + 1e-9
    assert error <= (2 * key.A * product_ + key.B * sigma + key.D1) * room + 1e-20
    limit = 2 * key.C * product_ + (1 - key.rho) * sigma + key.D2
    assert sigma_next <= limit * room + 1e-20


def estimates(
    estimator: Estimator, oracle: ChosenDraws, s: Any
) -> Iterator[tuple[float, torch.Tensor, tuple[torch.Tensor, ...]]]:
    """Every estimate of a step and the memory after it, with its probability."""
    q = estimator.coins.get("reference")
    references = [(True, q), (False, 1 - q)] if q else [(False, 1.0)]
    draws = list(product(range(SAMPLES), repeat=CLIENTS)) if oracle.finite_sum else [(0, 0)]
    for picks, (reference, chance) in product(draws, references):
        oracle.chosen = torch.tensor(picks)[:, None]
        _, sync = next(syncs(reference))
        yield chance / len(draws), *estimator(s, oracle.at(0), sync)


def planted(game: RandomGame, oracle: ChosenDraws, sync: Sync) -> ChosenDraws:
    """The game with an l1 term and a box, and the solution that a long run finds."""
    made = replace(game, terms=(L1(0.3), Box(-0.2, 0.4))).make(
        ChosenDraws, Site(Placement(CLIENTS), 0, torch.float64)
    )
    M, b = oracle.mean_game(sync)
    z = torch.zeros(1, DIM, dtype=torch.float64)
    step = 0.5 / float(torch.linalg.matrix_norm(M, 2))
    for _ in range(20_000):  # extra-gradient
        half = made.prox(z - step * (z @ M.T + b), step)
        after = made.prox(z - step * (half @ M.T + b), step)
        if float((after - z).abs().max()) < 1e-15:
            break
        z = after
    made._known["solution"] = z[0]
    assert isinstance(made, ChosenDraws)
    return made


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    skew=st.floats(0, 3),
    kind=st.sampled_from(["spectral", "exact"]),
)
def test_every_bound_that_is_shown_holds_where_the_run_is_deterministic(
    seed: int, skew: float, kind: str
) -> None:
    """With p = 1 and the full operator there is nothing to take the expectation of."""
    algorithm = ProxSkip(p=1.0, cocoercivity=kind)
    records = fedsys.run(
        RandomGame(seed, skew), algorithm, clients=CLIENTS, steps=30, dtype="float64"
    ).records
    shown = [record for record in records if "lyapunov_bound" in record]
    assert len(shown) in (0, len(records))
    assert len(shown) > 0 or kind == "spectral"
    for record in shown:
        assert record["lyapunov"] <= record["lyapunov_bound"] * (1 + 1e-9)


@pytest.mark.parametrize("name", ["sgda", "lsvrg", "saga", "quantised"])
def test_the_mean_over_seeds_stays_below_the_bound_of_a_random_estimator(name: str) -> None:
    algorithm = ProxSkip(estimator=name, cocoercivity="exact")
    game = RandomGame(seed=5, batch_size=1)
    ends = [
        fedsys.run(
            game, algorithm, clients=CLIENTS, steps=200, seed=s, dtype="float64",
            evaluate_every=10**6,
        ).records[-1]
        for s in range(30)
    ]  # fmt: skip
    assert np.mean([end["lyapunov"] for end in ends]) <= ends[0]["lyapunov_bound"]


def test_proxskip_lsvrgda_shows_the_same_bound_as_its_estimator() -> None:
    game = RandomGame(seed=1, batch_size=1)
    lasts = [
        fedsys.run(game, algorithm, clients=CLIENTS, rounds=5, dtype="float64").records[-1]
        for algorithm in (
            ProxSkipLSVRGDA(cocoercivity="exact"),
            ProxSkip(estimator="lsvrg", cocoercivity="exact"),
            Averaged(ProxSkip(estimator="lsvrg", cocoercivity="exact")),
        )
    ]
    assert len({(last["lyapunov"], last["lyapunov_bound"]) for last in lasts}) == 1


def test_the_bound_holds_down_to_rounding() -> None:
    result = fedsys.run(
        RandomGame(seed=2, skew=0.3), ProxSkip(cocoercivity="exact"), clients=CLIENTS, rounds=400
    )
    for record in result.records:
        assert record["lyapunov"] <= record["lyapunov_bound"]
    assert result.records[-1]["lyapunov_bound"] < 1e-4 * result.records[0]["lyapunov_bound"]


def test_one_node_with_an_l1_term_is_covered() -> None:
    result = fedsys.run(
        CompositeSaddle(dim=4, support=3),
        ProxSkip(estimator="full", cocoercivity="exact"),
        rounds=40,
        dtype="float64",
    )
    for record in result.records:
        assert record["lyapunov"] <= record["lyapunov_bound"]


NOT_COVERED: dict[str, tuple[Any, ProxSkip, dict[str, Any]]] = {
    "a step beyond the limit": (RandomGame(0), ProxSkip(lr=5.0), {}),
    "a scaled operator": (RandomGame(0), ProxSkip(operator_scale=0.5, cocoercivity="exact"), {}),
    "numbers without theory": (RandomGame(0), ProxSkip(lr=0.01, p=0.5), {}),
    "means weighted by size": (
        RandomGame(0),
        ProxSkip(cocoercivity="exact"),
        {"communicator": SkipCoin(weights="size")},
    ),
}


@pytest.mark.parametrize("name", NOT_COVERED)
def test_a_run_that_the_theorem_does_not_cover_shows_no_bound(name: str) -> None:
    problem, algorithm, options = NOT_COVERED[name]
    records = fedsys.run(problem, algorithm, clients=CLIENTS, rounds=3, **options).records
    assert all("lyapunov" not in record for record in records)
    assert all("lyapunov_bound" not in record for record in records)


def test_a_game_without_strong_monotonicity_has_no_bound() -> None:
    _, sync = next(syncs(False))
    site = Site(Placement(CLIENTS), 0, torch.float64)
    constants = BilinearGame().oracle(site).constants(sync)
    assert constants.mu == 0
    assert ProxSkip(lr=0.1, p=0.5).guarantee(Theory(constants, CLIENTS)) is None


def test_the_summary_says_whether_the_bound_of_the_last_record_holds() -> None:
    algorithm = ProxSkip(cocoercivity="exact")
    result = fedsys.run(RandomGame(3), algorithm, clients=CLIENTS, rounds=5, dtype="float64")
    found = summary.theory(result)
    assert found is not None
    last = result.records[-1]
    assert found["lyapunov"] == {
        "at_most": last["lyapunov_bound"], "lyapunov": last["lyapunov"], "holds": True
    }  # fmt: skip
    lines = theory_lines({"theory": found, "hyperparameters": {}})
    assert lines[-1].startswith("  bound of the theorem, in expectation: lyapunov at most")
    assert lines[-1].endswith(": holds")
    last["lyapunov"] = 2 * last["lyapunov_bound"]
    violated = summary.theory(result)
    assert theory_lines({"theory": violated, "hyperparameters": {}})[-1].endswith(": VIOLATED")


def test_saga_is_refused_in_one_line_where_samples_are_not_drawn() -> None:
    saga = ProxSkip(lr=0.1, p=0.5, estimator="saga")
    with pytest.raises(InputError, match=r"draws of single samples, but QuadraticGame draws all"):
        fedsys.run(QuadraticGame(dim=2, samples=3), saga, rounds=1)
    noisy = VariationalProblem(lambda z, client, rng: z + torch.randn(2), torch.zeros(2))
    with pytest.raises(InputError, match="draws of single samples, but VariationalProblem"):
        fedsys.run(noisy, saga, rounds=1)


def test_an_unknown_estimator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="one of sgda, full, lsvrg, saga, quantised, got 'svrg'"):
        ProxSkip(estimator="svrg")
