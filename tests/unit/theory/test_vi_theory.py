"""What the two papers on variational inequalities prove and plot, on their own problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import AUC, Case, Drive
from torch import Tensor

import fedsys
from fedsys.algorithms import (
    EG,
    GDA,
    LDE,
    LESGD,
    LIPPAX,
    LSGD,
    SLIPPAX,
    FedGDAGT,
    LocalSEG,
    LocalSGDA,
    ProxSkip,
    ProxSkipLSVRGDA,
)
from fedsys.communication import LocalTransport
from fedsys.core.algorithm import Algorithm, State
from fedsys.core.constants import Constants
from fedsys.core.errors import InputError
from fedsys.core.oracles import Oracle, Problem
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems import (
    BilinearGame,
    HeterogeneousToy,
    LogCoshSaddle,
    QuadraticGame,
    SkewSaddle,
    TwoPoints,
    VariationalProblem,
)
from fedsys.problems.games.affine import AffineOracle
from fedsys.training.result import Result

RARELY = 1_000_000
SEEDS = [0, 1]
seeds = pytest.mark.parametrize("seed", SEEDS)


def run(problem: Problem[Oracle], algorithm: Algorithm[Any, Any], **settings: Any) -> Result:
    """In one process, in float64; evaluated at the start and at the end unless told otherwise."""
    return fedsys.run(
        problem, algorithm, **{"dtype": "float64", "evaluate_every": RARELY, **settings}
    )


def final_error(problem: Problem[Oracle], algorithm: Algorithm[Any, Any], **settings: Any) -> float:
    return run(problem, algorithm, **settings).records[-1]["relative_error"]


# The quadratic game of Zhang et al. (ICLR 2024), arXiv:2306.05100: 20 clients, d = 20, m = 100.

CLIENTS = 20


class Prepared:
    """A problem made once: drawing its matrices and finding its constants takes seconds."""

    def __init__(self, game: QuadraticGame, seed: int, constants: Constants | None = None) -> None:
        self.game = game.oracle(Site(Placement(CLIENTS), seed, torch.float64))
        self.constants = constants or self.game.constants(unmetered(self.game))
        self.game.constants = lambda sync: self.constants  # type: ignore[method-assign]

    def oracle(self, site: Site) -> AffineOracle:
        assert replace(site, kind=None) == self.game.site
        return self.game


def unmetered(oracle: Oracle) -> Sync:
    """A sync that averages all clients of one process."""
    drive = Drive(Case(GDA(lr=1.0), QuadraticGame(1, 1)), LocalTransport(), CLIENTS)
    return drive.communicator.unmetered()


@cache
def full_game(seed: int) -> Prepared:
    return Prepared(QuadraticGame(), seed)


@cache
def sampled_game(seed: int) -> Prepared:
    """The same matrices; single samples change only sigma, which no step size here uses."""
    return Prepared(QuadraticGame(batch_size=1), seed, full_game(seed).constants)


def game_errors(algorithm: Algorithm[Any, Any], seed: int, sampled: bool = False) -> list[float]:
    """The relative errors after 0, 20, ..., 100 rounds, or 200 of single samples."""
    game = sampled_game(seed) if sampled else full_game(seed)
    rounds = 200 if sampled else 100
    result = run(game, algorithm, clients=CLIENTS, seed=seed, rounds=rounds, evaluate_every=20)
    return [record["relative_error"] for record in result.records]


THEORY_STEPS = {
    "proxskip": (ProxSkip(), 0.0, 1e-20),
    "fedgda_gt": (FedGDAGT(local_steps=20), 0.0, 1e-6),
    "local_seg": (LocalSEG(local_steps=20), 1e-4, 1.0),
    "local_gda": (LocalSGDA(lr_x="theory", lr_y="theory", local_steps=20), 1e-1, 1.0),
}


@seeds
@pytest.mark.parametrize("name", list(THEORY_STEPS))
def test_with_theory_steps_the_game_is_solved_in_the_order_of_figure_1(
    name: str, seed: int
) -> None:
    algorithm, low, high = THEORY_STEPS[name]
    assert low <= game_errors(algorithm, seed)[-1] < high


EQUAL = {"lr": 0.1, "local_steps": 20}


@seeds
@pytest.mark.parametrize(
    "algorithm",
    [LocalSGDA(lr_x=0.1, lr_y=0.1, local_steps=20), LocalSEG(**EQUAL), LSGD(**EQUAL)],
    ids=lambda a: type(a).__name__,
)
def test_with_equal_constant_steps_an_uncorrected_method_stalls(
    algorithm: Algorithm[Any, Any], seed: int
) -> None:
    errors = game_errors(algorithm, seed)
    assert errors[5] > 1e-6
    assert errors[5] == pytest.approx(errors[3], rel=1e-6)


@seeds
@pytest.mark.parametrize(
    "algorithm", [ProxSkip(lr=0.1, p=0.05), FedGDAGT(**EQUAL)], ids=lambda a: type(a).__name__
)
def test_with_equal_constant_steps_a_corrected_method_goes_to_machine_precision(
    algorithm: Algorithm[Any, Any], seed: int
) -> None:
    assert game_errors(algorithm, seed)[-1] < 1e-25


@seeds
def test_with_single_samples_only_the_variance_reduced_proxskip_solves_the_game(seed: int) -> None:
    assert game_errors(ProxSkipLSVRGDA(), seed, sampled=True)[-1] < 1e-10
    assert min(game_errors(ProxSkip(), seed, sampled=True)) > 1e-3


@seeds
def test_the_constants_of_the_game_are_those_of_the_reference(seed: int) -> None:
    c = full_game(seed).constants
    assert 0.40 < c.mu < 0.48
    assert 0.75 < c.L < 0.82
    assert 1.05 < c.ell_spectral < 1.2
    assert c.ell_spectral <= c.ell_exact < 1.25
    assert 4 < c.ell_samples_spectral < 6  # a maximum over 2000 samples: 5.2 in the reference
    assert 1.4 < c.ell_samples_exact < 1.7


def spectral_ell(matrices: np.ndarray) -> float:
    """1/ell = min Re(1/eigenvalue)."""
    return float(1 / (1 / np.linalg.eigvals(matrices)).real.min())


def tuned(algorithm: Algorithm[Any, Any], game: Prepared) -> Any:
    return run(game, algorithm, clients=CLIENTS, steps=1).algorithm


def test_the_theory_numbers_of_the_proxskip_family_are_those_of_table_3_and_corollary_3_9() -> None:
    samples = full_game(0).game._M.numpy()
    means = samples.mean(1)
    mu = min(np.linalg.eigvalsh((M + M.T) / 2)[0] for M in means)
    ell, ell_samples = spectral_ell(means), spectral_ell(samples.reshape(-1, 40, 40))

    full = tuned(ProxSkip(), full_game(0))
    assert full.lr == pytest.approx(1 / (2 * ell))
    assert full.p == pytest.approx(sqrt(mu / (2 * ell)))

    single = tuned(ProxSkip(), sampled_game(0))
    assert single.lr == pytest.approx(1 / (2 * ell_samples))
    assert single.p == pytest.approx(sqrt(mu / (2 * ell_samples)))

    reduced = tuned(ProxSkipLSVRGDA(), sampled_game(0))
    assert reduced.lr == pytest.approx(min(1 / mu, 1 / (6 * ell_samples)))
    assert reduced.p == pytest.approx(sqrt(reduced.lr * mu))
    assert reduced.q == pytest.approx(2 * reduced.lr * mu)


def test_the_exact_cocoercivity_gives_a_smaller_step() -> None:
    c = full_game(0).constants
    exact = tuned(ProxSkip(cocoercivity="exact"), full_game(0))
    assert exact.lr == pytest.approx(1 / (2 * c.ell_exact))
    assert exact.lr < tuned(ProxSkip(), full_game(0)).lr


# The toys of H.3 and H.4.

GRID = (0.05, 0.1, 0.2, 0.4)


def best_of_grid(heterogeneity: str, method: type[Any], **settings: Any) -> float:
    toy = HeterogeneousToy(heterogeneity=heterogeneity)
    steps = (method(lr=lr, **settings) for lr in GRID)
    return min(final_error(toy, algorithm, clients=100, rounds=50) for algorithm in steps)


def test_on_different_clients_the_best_proxskip_beats_the_best_local_methods_as_in_figure_6() -> (
    None
):
    assert best_of_grid("high", ProxSkip, p=0.05) < 1e-15
    assert best_of_grid("high", LocalSEG, local_steps=20) > 1e-3
    assert best_of_grid("high", LSGD, local_steps=20) > 1e-3


UNBIASED = [
    ProxSkip(lr=0.2, p=0.05),
    LocalSEG(lr=0.2, local_steps=20),
    LocalSGDA(lr_x=0.2, lr_y=0.2, local_steps=20),
    LSGD(lr=0.2, local_steps=20),
]


@pytest.mark.parametrize("algorithm", UNBIASED, ids=lambda a: type(a).__name__)
def test_with_equal_jacobians_no_method_is_biased(algorithm: Algorithm[Any, Any]) -> None:
    assert final_error(HeterogeneousToy(heterogeneity="low"), algorithm, clients=100, rounds=50) < (
        1e-25
    )
    for delta in (0.0, 1e6):
        assert final_error(TwoPoints(delta), algorithm, clients=2, rounds=50) < 1e-25


# Extra steps and proximal points: Wang and Kale, 2026, arXiv:2602.09164.


def test_on_a_bilinear_game_lesgd_and_lippax_converge_and_lsgd_diverges() -> None:
    def after(algorithm: Algorithm[Any, Any], rounds: int) -> dict[str, float]:
        return run(BilinearGame(), algorithm, clients=4, rounds=rounds).records[-1]

    assert after(LIPPAX(local_steps=10), 10)["relative_error"] < 1e-10
    short, long = (after(LESGD(local_steps=10), rounds) for rounds in (10, 40))
    assert short["relative_error"] < 0.1
    assert long["average_gap"] == pytest.approx(short["average_gap"] / 4, rel=0.05)
    assert after(LSGD(lr=0.2, local_steps=10), 10)["relative_error"] > 5
    assert after(LSGD(lr=0.2, local_steps=10), 40)["relative_error"] > 5000


def test_lsgd_has_no_theory_step_on_a_bilinear_game_and_says_so() -> None:
    with pytest.raises(
        InputError, match=r"Theorem 6\) needs a co-coercive operator .*algorithm=lesgd"
    ):
        run(BilinearGame(), LSGD(), clients=2, rounds=1)


PERIODS = (4, 8, 16, 32, 64)


def slopes(problem: Problem[Oracle], algorithm: Algorithm[Any, Any]) -> tuple[float, float]:
    """Of the average's operator norm and gap against K, in logarithms, at theory steps, R = 5."""
    final = [
        run(problem, replace(algorithm, local_steps=K), clients=1, rounds=5).records[-1]
        for K in PERIODS
    ]

    def slope(metric: str) -> float:
        values = [record[f"average_{metric}"] for record in final]
        return float(np.polyfit(np.log(PERIODS), np.log(values), 1)[0])

    return slope("operator_norm"), slope("gap")


class WideBilinearGame:
    """A bilinear game whose gap is taken over a ball of twice the distance to the solution.

    With D the distance itself, the gap of a proximal point's average is zero by geometry.
    """

    def oracle(self, site: Site) -> AffineOracle:
        oracle = BilinearGame(dim=5).oracle(site)
        oracle._radius = 5.0
        return oracle


def test_doubling_K_halves_the_gap_of_lippax_where_that_of_lesgd_falls_by_root_2() -> None:
    _, of_lippax = slopes(WideBilinearGame(), LIPPAX())
    _, of_lesgd = slopes(WideBilinearGame(), LESGD(theorem=1))
    assert -1.25 < of_lippax < -0.8
    assert -0.7 < of_lesgd < -0.35


def test_doubling_K_gains_lippax_twice_as_much_as_lesgd_on_a_game_that_is_not_affine() -> None:
    """Its Jacobian is definite at z*, so the gap is quadratic in the average's distance to z*."""
    norm_of_lippax, gap_of_lippax = slopes(LogCoshSaddle(), LIPPAX())
    norm_of_lesgd, gap_of_lesgd = slopes(LogCoshSaddle(), LESGD(theorem=1))
    assert -1.25 < norm_of_lippax < -0.8
    assert -0.7 < norm_of_lesgd < -0.35
    assert -2.2 < gap_of_lippax < -1.8
    assert -1.2 < gap_of_lesgd < -0.8


def test_doubling_K_gains_lippax_twice_as_much_as_lesgd_where_the_operator_is_not_cocoercive() -> (
    None
):
    """The gap of this game goes with the distance to z* to the power 3/2."""
    norm_of_lippax, gap_of_lippax = slopes(SkewSaddle(dim=3, radius=4.0), LIPPAX())
    norm_of_lesgd, gap_of_lesgd = slopes(SkewSaddle(dim=3, radius=4.0), LESGD(theorem=1))
    assert -1.25 < norm_of_lippax < -0.8
    assert -0.75 < norm_of_lesgd < -0.35
    assert -1.65 < gap_of_lippax < -1.35
    assert -1.0 < gap_of_lesgd < -0.65


# The bounds.

BOUNDED = {
    "theorem 1": (LESGD, LogCoshSaddle, {"theorem": 1}),
    "theorem 1, not co-coercive": (LESGD, SkewSaddle, {"theorem": 1}),
    "theorem 3, not co-coercive": (LIPPAX, SkewSaddle, {"theorem": 3}),
    "theorem 2": (LESGD, BilinearGame, {"theorem": 2}),
    "theorem 3": (LIPPAX, LogCoshSaddle, {"theorem": 3}),
    "theorem 4": (LIPPAX, LogCoshSaddle, {"theorem": 4}),
    "theorem 6": (LSGD, LogCoshSaddle, {}),
    "theorem 7": (LDE, LogCoshSaddle, {}),
}


@pytest.mark.parametrize("local_steps", [5, 20])
@pytest.mark.parametrize("sigma", [0, 0.1, 1])
@pytest.mark.parametrize("name", list(BOUNDED))
def test_the_measured_gap_is_below_the_bound_of_the_theorem(
    name: str, sigma: float, local_steps: int
) -> None:
    method, problem, options = BOUNDED[name]
    gaps = []
    for seed in range(3 if sigma else 1):
        game, algorithm = problem(dim=3, noise=sigma), method(local_steps=local_steps, **options)
        result = run(game, algorithm, clients=4, rounds=5, seed=seed)
        gaps.append(result.records[-1]["average_gap"])
    assert result.theory is not None
    bound = result.algorithm.bound(result.theory)
    assert bound is not None
    assert np.mean(gaps) < bound


# The shared coin.


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_proxskip_communicates_with_chance_p_and_sends_one_vector_each_way(p: float) -> None:
    steps = 10_000
    final = run(TwoPoints(), ProxSkip(lr=0.1, p=p), clients=2, steps=steps).records[-1]
    assert abs(final["round"] - p * steps) < 3 * sqrt(steps * p * (1 - p))
    assert final["bytes_up"] == final["bytes_down"] == final["round"] * 2 * 8
    assert final["exchanges"] == final["round"]
    # The coins: one number per round, and one for the round that had not ended.
    assert final["bytes_control"] == (final["round"] + 1) * 8


# Reductions and invariants, on a small game whose clients differ.

SMALL = QuadraticGame(dim=3, samples=4)


def states(algorithm: Algorithm[Any, Any], steps: int) -> tuple[Drive, Iterator[State]]:
    drive = Drive(Case(algorithm, SMALL), LocalTransport())
    return drive, drive.states(steps)


def points(algorithm: Algorithm[Any, Any], steps: int) -> Tensor:
    """The points of the first client after every step."""
    _, walk = states(algorithm, steps)
    return torch.stack([algorithm.solution(state)[0] for state in walk])


def solved(drive: Drive) -> Tensor:
    """z*, as the row of every client."""
    solution = drive.oracle.solution(drive.communicator.unmetered())
    return solution.expand_as(drive.oracle.z0)


def by_the_mean_operator(steps: int, lr: float, extra: bool) -> Tensor:
    """Centralised gradient descent-ascent, or extra-gradient, written out."""
    drive, _ = states(GDA(lr=lr), 0)
    z, path = drive.oracle.z0, []

    def F(z: Tensor) -> Tensor:
        return drive.oracle.full_operator(z).mean(0).expand_as(z)

    for _ in range(steps + 1):
        path.append(z[0])
        z = z - lr * F(z - lr * F(z) if extra else z)
    return torch.stack(path)


@pytest.mark.parametrize(
    "algorithm",
    [ProxSkip(lr=0.3, p=1.0), GDA(lr=0.3), LSGD(lr=0.3, local_steps=1)],
    ids=lambda a: type(a).__name__,
)
def test_with_communication_in_every_step_it_is_descent_ascent_on_the_mean(
    algorithm: Algorithm[Any, Any],
) -> None:
    expected = by_the_mean_operator(30, 0.3, extra=False)
    torch.testing.assert_close(points(algorithm, 30), expected, rtol=0, atol=1e-13)


def test_with_one_local_step_lesgd_is_extra_gradient_and_local_seg_is_not() -> None:
    expected = by_the_mean_operator(30, 0.3, extra=True)
    for same in (LESGD(lr=0.3, local_steps=1), EG(lr=0.3)):
        torch.testing.assert_close(points(same, 30), expected, rtol=0, atol=1e-13)
    other = points(LocalSEG(lr=0.3, local_steps=1), 30)
    assert (other - expected).norm(dim=1).max() > 1e-3


def test_the_control_variates_of_proxskip_sum_to_zero_after_every_communication() -> None:
    drive = Drive(Case(ProxSkip(lr=0.2, p=0.3), SMALL), LocalTransport())
    state, communications = drive.start(), 0
    for step in range(100):
        state, sync = drive.step(state, step)
        if sync:
            communications += 1
            assert state.tensors()["h"].norm() > 1e-3
            assert state.tensors()["h"].sum(0).norm() < 1e-13
    assert communications > 20


def test_the_control_variates_of_proxskip_tend_to_the_operators_at_the_solution() -> None:
    drive, walk = states(ProxSkip(lr=0.2, p=0.3), 2000)
    *_, last = walk
    expected = drive.oracle.full_operator(solved(drive))
    assert expected.norm() > 1
    torch.testing.assert_close(last.tensors()["h"], expected, rtol=0, atol=1e-10)


def drift_from_the_solution(algorithm: Algorithm[Any, Any], steps: int = 40) -> float:
    """How far a method that starts at z* gets from it, at the end of a round."""
    drive, _ = states(algorithm, 0)
    start = solved(drive)
    drive.oracle.z0, drive.oracle.x0, drive.oracle.y0 = start, start[:, :3], start[:, 3:]
    *_, last = drive.states(steps)
    return float((algorithm.solution(last) - start).norm())


@pytest.mark.parametrize("local_steps", [1, 5, 20])
def test_the_solution_is_a_fixed_point_of_fedgda_gt_for_any_number_of_local_steps(
    local_steps: int,
) -> None:
    assert drift_from_the_solution(FedGDAGT(lr=0.2, local_steps=local_steps)) < 1e-13


@pytest.mark.parametrize(
    "algorithm",
    [LocalSGDA(lr_x=0.2, lr_y=0.2, local_steps=20), LocalSEG(lr=0.2, local_steps=20)],
    ids=lambda a: type(a).__name__,
)
def test_the_solution_is_no_fixed_point_of_an_uncorrected_method(
    algorithm: Algorithm[Any, Any],
) -> None:
    assert drift_from_the_solution(algorithm) > 1e-2


def test_slippax_without_smoothing_is_lippax_with_the_same_draws() -> None:
    options = {"lr": 0.3, "inner_lr": 0.1, "inner_steps": 4, "local_steps": 3}
    game = replace(SMALL, batch_size=1, noise=0.5)

    def walk(algorithm: Algorithm[Any, Any]) -> list[Tensor]:
        drive = Drive(Case(algorithm, game), LocalTransport())
        return [state.tensors()["z"] for state in drive.states(20)]

    smooth, plain = walk(SLIPPAX(delta=0.0, **options)), walk(LIPPAX(**options))
    assert all(torch.equal(a, b) for a, b in zip(smooth, plain, strict=True))
    smoothed = walk(SLIPPAX(delta=0.5, **options))
    assert not torch.equal(smoothed[-1], plain[-1])


# Where there is no theory.

UNKNOWN = VariationalProblem(lambda z, client, rng: z - client, torch.ones(2))
WITHOUT_NUMBERS = [ProxSkip(), ProxSkipLSVRGDA(), FedGDAGT(), LocalSEG(), LSGD(), LESGD(), LIPPAX()]
WITHOUT_NUMBERS += [SLIPPAX(), LDE(), GDA(), EG(), LocalSGDA(lr_x="theory", lr_y="theory")]


@pytest.mark.parametrize("algorithm", WITHOUT_NUMBERS, ids=lambda a: type(a).__name__)
def test_a_problem_without_constants_asks_for_a_number(algorithm: Algorithm[Any, Any]) -> None:
    problems: list[Any] = [UNKNOWN, AUC] if isinstance(algorithm, LocalSGDA) else [UNKNOWN]
    for problem in problems:
        with pytest.raises(InputError) as refusal:
            run(problem, algorithm, clients=2, rounds=1)
        message = str(refusal.value)
        assert len(message.splitlines()) == 1
        assert type(algorithm).__name__ in message
        assert f"{type(problem).__name__} does not know; give algorithm.lr" in message


@pytest.mark.parametrize(
    "algorithm",
    [
        ProxSkip(),
        ProxSkip(lr=0.1),
        ProxSkipLSVRGDA(),
        FedGDAGT(),
        LocalSGDA(lr_x="theory", lr_y="theory"),
    ],
    ids=["ProxSkip", "ProxSkip with a step", "ProxSkipLSVRGDA", "FedGDAGT", "LocalSGDA"],
)
def test_a_theory_for_strong_monotonicity_refuses_a_problem_that_lacks_it(
    algorithm: Algorithm[Any, Any],
) -> None:
    for problem in (LogCoshSaddle(), BilinearGame()):
        with pytest.raises(InputError, match=r"theory has no value for .*\(mu=0, .*give algorithm"):
            run(problem, algorithm, clients=2, rounds=1)
