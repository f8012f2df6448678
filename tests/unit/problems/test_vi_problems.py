"""Games with known operators, solutions and constants, compared with brute force.

Axes: C clients (all hosted here), d variables, n points.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from math import inf, sqrt
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.data.sources import california
from fedsys.problems import (
    BilinearGame,
    CompositeSaddle,
    HeterogeneousToy,
    LogCoshSaddle,
    PolicemanBurglar,
    RobustLeastSquares,
    SkewSaddle,
    SyntheticSaddle,
    TwoPoints,
)
from fedsys.problems.games.bounded_saddle import _Ascent
from fedsys.problems.games.operator_oracle import OperatorOracle

SEED = 5
ROBUST = RobustLeastSquares(rows=12, features=2)
GAMES: dict[str, tuple[Any, int]] = {
    "robust": (ROBUST, 4),
    "robust standardised": (RobustLeastSquares(rows=12, features=2, standardise=True), 3),
    "toy low": (HeterogeneousToy(dim=3), 6),
    "toy high": (HeterogeneousToy(dim=3, heterogeneity="high"), 6),
    "two points": (TwoPoints(delta=5.0), 2),
    "two points together": (TwoPoints(), 2),
    "bilinear": (BilinearGame(dim=3), 4),
    "synthetic saddle": (SyntheticSaddle(dim=3, s=4.0), 5),
    "bilinear apart": (BilinearGame(dim=3, heterogeneity=2.0), 4),
    "matrix by row": (PolicemanBurglar(), 4),
    "matrix by entry": (PolicemanBurglar(weights="entry", start="random"), 4),
    "logcosh": (LogCoshSaddle(dim=2, scale=3.0), 4),
    "skew": (SkewSaddle(dim=2, scale=3.0), 4),
    "composite": (CompositeSaddle(dim=4, support=3), 4),
    "composite apart": (CompositeSaddle(dim=4, support=3, heterogeneity=1.0), 4),
}
AFFINE = [name for name in GAMES if name not in ("logcosh", "skew")]
RANDOM = [name for name in GAMES if not name.startswith("two points")]


def everywhere(problem: Any, clients: int, seed: int = SEED) -> tuple[Any, Sync]:
    """The oracle of all clients in one process, and a sync that communicates."""
    placement = Placement(clients)
    oracle = problem.oracle(Site(placement, seed, torch.float64))
    communicator = AllReduce()
    communicator.open(LocalTransport(), placement, Every(1), seed)
    return oracle, communicator.initial()


@pytest.fixture(params=GAMES)
def game(request: pytest.FixtureRequest) -> tuple[OperatorOracle, Sync]:
    return everywhere(*GAMES[request.param])


def points_in_ball(oracle: OperatorOracle, D: float, n: int = 40) -> Tensor:
    """Random points of the ball around z0, half of them on its surface: [n, d]."""
    dim = oracle.z0.shape[1]
    stream = np.random.default_rng(0)
    directions = torch.from_numpy(stream.standard_normal((n, dim)))
    lengths = torch.from_numpy(np.where(np.arange(n) % 2, D, D * stream.uniform(size=n)))
    return oracle.z0[0] + lengths[:, None] * directions / directions.norm(dim=1, keepdim=True)


def operators(oracle: OperatorOracle, points: Tensor) -> Tensor:
    """F_i at each point: [n, C, d]."""
    return torch.stack([oracle.full_operator(oracle.site.rows(u)) for u in points])


def jacobians(oracle: OperatorOracle) -> Tensor:
    """M_i of affine operators, computed from the unit vectors: [C, d, d]."""
    dim = oracle.z0.shape[1]
    zero = torch.zeros(1, dim, dtype=torch.float64)
    columns = operators(oracle, torch.cat([zero, torch.eye(dim, dtype=torch.float64)]))
    return (columns[1:] - columns[0]).permute(1, 2, 0)


def by_autograd(f: Callable[[Tensor, Tensor], Tensor], z: Tensor, split: int) -> Tensor:
    """(grad_x f, -grad_y f)."""
    x, y = z[:split].clone().requires_grad_(), z[split:].clone().requires_grad_()
    gx, gy = torch.autograd.grad(f(x, y), (x, y))
    return torch.cat([gx, -gy])


# Properties of every game.


def test_the_solution_is_a_fixed_point_of_the_proximal_step(
    game: tuple[OperatorOracle, Sync],
) -> None:
    oracle, sync = game
    z = oracle.solution(sync)
    assert z is not None
    rows = oracle.site.rows(z)
    F = sync(oracle.full_operator(rows))
    assert (rows - oracle.prox(rows - F, 1.0)).norm() < 1e-10
    metrics = oracle.evaluate(rows, sync)
    assert metrics["relative_error"] == 0
    assert metrics["gap"] == pytest.approx(0, abs=1e-9)
    assert oracle.evaluate(oracle.z0, sync)["gap"] > 0


def test_random_pairs_never_violate_the_constants(game: tuple[OperatorOracle, Sync]) -> None:
    oracle, sync = game
    known = oracle.constants(sync)
    assert known is not None
    u = points_in_ball(oracle, known.radius)
    F = operators(oracle, u)
    steps = (u[0::2] - u[1::2])[:, None]
    dF = F[0::2] - F[1::2]
    products, lengths = (dF * steps).sum(-1), steps.square().sum(-1)
    tiny = 1e-9 * (1 + dF.square().sum(-1).max())
    assert (dF.norm(dim=-1) <= known.L * lengths.sqrt() + tiny).all()
    assert (products >= -tiny).all()
    assert (products.mean(1, keepdim=True) >= known.mu * lengths - tiny).all()
    if known.ell_exact < inf:
        assert (dF.square().sum(-1) <= known.ell_exact * products + tiny).all()
    mean = F.mean(1)
    if known.beta < inf:
        dmean = dF.mean(1)
        assert (dmean.square().sum(-1) <= known.beta * products.mean(1) + tiny).all()
    assert (mean.norm(dim=-1) <= known.G).all()
    assert ((F - mean[:, None]).norm(dim=-1) <= known.xi + tiny).all()
    assert known.dim == u.shape[1]


@pytest.mark.parametrize("name", AFFINE)
def test_constants_of_affine_games_are_those_of_their_jacobians(name: str) -> None:
    oracle, sync = everywhere(*GAMES[name])
    known, J = oracle.constants(sync), jacobians(oracle)
    assert known.affine
    assert known.Lambda == 0
    assert pytest.approx(float(torch.linalg.matrix_norm(J, 2).max())) == known.L
    owned = J.mean(0, keepdim=True) if "robust" in name else J
    smallest = torch.linalg.eigvalsh((owned + owned.mT) / 2)[:, 0].min()
    assert known.mu == pytest.approx(float(smallest), abs=1e-12)
    if not J.sub(J[0]).any():  # equal Jacobians: clients only differ by constants
        F = operators(oracle, oracle.z0[:1])[0]
        expected = float((F - F.mean(0)).norm(dim=1).max())
        assert known.xi == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", GAMES)
def test_a_client_has_the_same_game_and_the_same_draws_wherever_it_is_hosted(name: str) -> None:
    problem, clients = GAMES[name]
    problem = type(problem)(**{**vars(problem), "noise": 0.3})
    whole = problem.oracle(Site(Placement(clients), SEED, torch.float64)).at(7)
    z = whole.z0 + torch.linspace(-1, 1, whole.z0.numel()).reshape(whole.z0.shape)
    expected, drawn = whole.full_operator(z), whole.operator(z, whole.draw())
    for ranks in range(1, clients + 1):
        for rank in range(ranks):
            site = Site(Placement(clients, rank, ranks), SEED, torch.float64)
            part = problem.oracle(site).at(7)
            own = list(site.hosted)
            torch.testing.assert_close(part.full_operator(z[own]), expected[own])
            torch.testing.assert_close(part.operator(z[own], part.draw()), drawn[own])
            torch.testing.assert_close(part.z0, whole.z0[own])


@pytest.mark.parametrize("name", GAMES)
def test_noise_has_the_stated_variance_and_no_mean(name: str) -> None:
    problem, clients = GAMES[name]
    oracle, sync = everywhere(type(problem)(**{**vars(problem), "noise": 0.7}), clients)
    z = oracle.z0
    draws = (oracle.at(step) for step in range(1500))
    noise = torch.stack([o.operator(z, o.draw()) for o in draws]) - oracle.full_operator(z)
    assert oracle.constants(sync).sigma == pytest.approx(0.7)
    assert float(noise.square().sum(-1).mean()) == pytest.approx(0.49, rel=0.1)
    assert noise.mean((0, 1)).norm() < 4 * 0.7 / sqrt(1500 * clients)


@pytest.mark.parametrize("name", RANDOM)
def test_another_seed_gives_another_game(name: str) -> None:
    problem, clients = GAMES[name]
    first, second = everywhere(problem, clients, 1)[0], everywhere(problem, clients, 2)[0]
    z = first.z0 + 0.5
    assert not torch.allclose(first.full_operator(z), second.full_operator(z))


# Robust least squares.


def test_robust_least_squares_is_the_stated_function_row_by_row() -> None:
    oracle, _ = everywhere(ROBUST, 4)
    A, y0 = (torch.from_numpy(values) for values in ROBUST.data(SEED))
    z = torch.linspace(-1, 1, 14, dtype=torch.float64)
    for client in range(4):
        for sample in range(3):
            row = 3 * client + sample

            def f(beta: Tensor, y: Tensor, row: int = row) -> Tensor:
                return (A[row] @ beta - y[row]) ** 2 - 50 * (y[row] - y0[row]) ** 2

            picks = torch.full((4, 1), sample)
            F = oracle.sample_operator(oracle.site.rows(z), picks)[client]
            torch.testing.assert_close(F, by_autograd(f, z, 2))


def test_the_mean_over_clients_is_the_whole_function_over_its_rows() -> None:
    oracle, sync = everywhere(ROBUST, 4)
    A, y0 = (torch.from_numpy(values) for values in ROBUST.data(SEED))
    z = torch.linspace(-1, 1, 14, dtype=torch.float64)

    def G(beta: Tensor, y: Tensor) -> Tensor:
        return (A @ beta - y).square().sum() - 50 * (y - y0).square().sum()

    F = sync(oracle.full_operator(oracle.site.rows(z)))[0]
    torch.testing.assert_close(F, by_autograd(G, z, 2) / 12)


def test_the_robust_fit_is_the_least_squares_fit() -> None:
    oracle, sync = everywhere(ROBUST, 4)
    A, y0 = ROBUST.data(SEED)
    beta = np.linalg.lstsq(A, y0, rcond=None)[0]
    expected = np.concatenate([beta, (50 * y0 - A @ beta) / 49])
    np.testing.assert_allclose(oracle.solution(sync).numpy(), expected, atol=1e-12)


def test_clients_of_robust_least_squares_are_cocoercive_but_strongly_monotone_only_together() -> (
    None
):
    oracle, sync = everywhere(ROBUST, 4)
    known, J = oracle.constants(sync), jacobians(oracle)
    A, _ = ROBUST.data(SEED)
    together = 2 * min(np.linalg.eigvalsh(A.T @ A)[0], 49) / 12
    assert known.mu == pytest.approx(together)
    assert torch.linalg.eigvalsh((J + J.mT) / 2)[:, 0].max() < 1e-12
    assert known.L < known.ell_exact < inf
    assert known.ell_spectral <= known.ell_exact
    # The Jacobian of a row only acts on its direction and its y, as 2 [[n^2, -n], [n, lam - 1]].
    norms = np.linalg.norm(A, axis=1)
    small = [2 * np.array([[n**2, -n], [n, 49.0]]) for n in norms]
    rows = max(1 / np.min((1 / np.linalg.eigvals(m)).real) for m in small)
    assert known.ell_samples_spectral == pytest.approx(rows)


def test_draws_of_rows_have_the_clients_operator_as_mean_and_sigma_as_deviation() -> None:
    problem = RobustLeastSquares(rows=12, features=2, batch_size=2, noise=0.3)
    oracle, sync = everywhere(problem, 4)
    z = oracle.site.rows(oracle.solution(sync))
    draws = (oracle.at(step) for step in range(3000))
    F = torch.stack([o.operator(z, o.draw()) for o in draws])
    deviation = F - oracle.full_operator(z)
    variance = deviation.square().sum(-1).mean(0).max()
    assert oracle.constants(sync).sigma ** 2 == pytest.approx(float(variance), rel=0.08)
    assert (deviation.mean(0).norm(dim=1) < 4 * sqrt(variance / 3000)).all()


def test_synthetic_data_has_the_stated_deviations() -> None:
    problem = RobustLeastSquares(rows=2000, features=200, coefficient_std=0.1, residual_std=0.01)
    A, y0 = problem.data(SEED)
    beta = np.linalg.solve(A.T @ A, A.T @ y0)
    assert A.std() == pytest.approx(1, rel=0.01)
    assert beta.std() == pytest.approx(0.1, rel=0.15)
    assert (y0 - A @ beta).std(ddof=200) == pytest.approx(0.01, rel=0.06)


HOUSES = """-122.23,37.88,41.0,880.0,129.0,322.0,126.0,8.3252,452600.0
-122.22,37.86,21.0,7099.0,1106.0,2401.0,1138.0,8.3014,358500.0
-122.24,37.85,52.0,1467.0,190.0,496.0,177.0,7.2574,352100.0
"""


def test_housing_rows_have_the_features_that_scikit_learn_defines(tmp_path: Path) -> None:
    (tmp_path / "cal_housing").mkdir()
    (tmp_path / "cal_housing" / "cal_housing.data").write_text(HOUSES)
    problem = RobustLeastSquares(source="california", rows=2, root=str(tmp_path))
    A, y0 = problem.data(0)
    first = [8.3252, 41, 6.984127, 1.02381, 322, 2.555556, 37.88, -122.23]
    np.testing.assert_allclose(A[0], first, rtol=1e-6)
    np.testing.assert_allclose(y0, [4.526, 3.585])
    with pytest.raises(InputError, match="rows must be at most 3, got 200"):
        RobustLeastSquares(source="california", root=str(tmp_path)).data(0)
    scaled = RobustLeastSquares("california", rows=3, root=str(tmp_path), standardise=True)
    A, y0 = scaled.data(0)
    np.testing.assert_allclose([*A.mean(0), y0.mean()], 0, atol=1e-9)
    np.testing.assert_allclose(A.std(0), 1)


@pytest.mark.parametrize("root", [None, "nowhere"])
def test_missing_housing_data_is_an_error_with_a_remedy(root: str | None) -> None:
    problem = RobustLeastSquares(source="california", root=root)
    with pytest.raises(InputError, match=r"missing; set FEDSYS_DATA .* problem\.download=true"):
        problem.oracle(Site())


def test_housing_data_is_downloaded_once_on_request_and_no_pickle_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = HOUSES.encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("CaliforniaHousing/cal_housing.data")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    published = tmp_path / "cal_housing.tgz"
    published.write_bytes(archive.getvalue())
    monkeypatch.setattr(california, "ADDRESS", published.as_uri())
    root = tmp_path / "root"
    root.mkdir()
    (root / "cal_housing_py3.pkz").write_bytes(b"cos\nabort\n(tR.")  # scikit-learn's own copy
    problem = RobustLeastSquares("california", rows=2, root=str(root), download=True)
    with pytest.raises(InputError, match="does not hold the published file"):
        problem.data(0)
    monkeypatch.setattr(california, "SHA256", hashlib.sha256(archive.getvalue()).hexdigest())
    A, y0 = problem.data(0)
    assert A.shape == (2, 8)
    np.testing.assert_allclose(y0, [4.526, 3.585])
    published.unlink()
    assert problem.data(0)[0].shape == (2, 8)
    other = RobustLeastSquares("california", rows=2, root=str(tmp_path / "other"), download=True)
    with pytest.raises(InputError, match="the download failed"):
        other.data(0)


# Toys.


@pytest.mark.parametrize("level", ["low", "high"])
def test_the_toy_is_the_stated_function(level: str) -> None:
    oracle, _ = everywhere(HeterogeneousToy(dim=3, heterogeneity=level), 5)
    z = torch.linspace(-2, 1, 6, dtype=torch.float64)
    at_zero, at_z = operators(oracle, torch.stack([torch.zeros_like(z), z]))
    for client in range(5):
        b = -at_zero[client, 3:]
        t = jacobians(oracle)[client, 3, 0]

        def f(x: Tensor, y: Tensor, b: Tensor = b, t: Tensor = t) -> Tensor:
            return -(y @ y / 2 - b @ y + t * y @ x) + 0.1 / 2 * x @ x

        torch.testing.assert_close(at_z[client], by_autograd(f, z, 3))


def test_the_coefficients_of_the_toy_have_the_stated_distributions() -> None:
    offsets = {}
    for level in ("low", "high"):
        oracle, _ = everywhere(HeterogeneousToy(heterogeneity=level), 400)
        t = jacobians(oracle)[:, 20, 0]
        offsets[level] = -operators(oracle, torch.zeros(1, 40))[0, :, 20:]
        spread = (0.0, 1.0) if level == "low" else (sqrt(1 / 12), 0.5)
        assert (float(t.std()), float(t.mean())) == pytest.approx(spread, abs=0.05)
    assert float(offsets["low"].std()) == pytest.approx(10, rel=0.03)
    # E s^2 = 400/3 for s ~ U(0, 20); the clients' standard deviations are distributed like s.
    assert float(offsets["high"].square().mean()) == pytest.approx(400 / 3, rel=0.15)
    assert float(offsets["high"].std(1).std()) == pytest.approx(20 / sqrt(12), rel=0.15)


def test_the_solution_of_the_toy_matches_a_value_computed_by_hand() -> None:
    oracle, sync = everywhere(HeterogeneousToy(dim=3, heterogeneity="high"), 5)
    t = jacobians(oracle)[:, 3, 0].mean()
    b = -operators(oracle, torch.zeros(1, 6))[0, :, 3:].mean(0)
    x = t * b / (0.1 + t**2)
    torch.testing.assert_close(oracle.solution(sync), torch.cat([x, b - t * x]))
    assert oracle.constants(sync).mu == pytest.approx(0.1)


@pytest.mark.parametrize("delta", [0.0, 1e6])
def test_two_points_match_values_computed_by_hand(delta: float) -> None:
    oracle, sync = everywhere(TwoPoints(delta=delta), 2)
    own = torch.tensor([[delta, 0.0], [0.0, delta]], dtype=torch.float64)
    assert oracle.z0.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert (oracle.full_operator(own) == 0).all()
    assert oracle.solution(sync).tolist() == [delta / 2, delta / 2]
    known = oracle.constants(sync)
    assert (known.mu, known.L, known.ell_exact) == (1, 1, 1)
    assert known.xi == pytest.approx(delta / sqrt(2))
    z = torch.tensor([3.0, -1.0], dtype=torch.float64)
    F = oracle.full_operator(oracle.site.rows(z))
    for client, (p, q) in enumerate(own):

        def f(x: Tensor, y: Tensor, p: Tensor = p, q: Tensor = q) -> Tensor:
            return ((x - p) ** 2 / 2 - (y - q) ** 2 / 2).sum()

        torch.testing.assert_close(F[client], by_autograd(f, z, 1))


def test_the_bilinear_game_is_the_stated_function_with_singular_values_from_a_half_to_one() -> None:
    oracle, _ = everywhere(BilinearGame(dim=4, heterogeneity=1.0), 3)
    z = torch.linspace(-2, 1, 8, dtype=torch.float64)
    at_zero, at_z = operators(oracle, torch.stack([torch.zeros_like(z), z]))
    B = jacobians(oracle)[0, :4, 4:]
    values = torch.linalg.svdvals(B)
    assert values.min() >= 0.5 - 1e-12
    assert values.max() <= 1 + 1e-12
    for client in range(3):
        a, c = at_zero[client].split(4)

        def f(x: Tensor, y: Tensor, a: Tensor = a, c: Tensor = c) -> Tensor:
            return x @ B @ y + a @ x - c @ y

        torch.testing.assert_close(at_z[client], by_autograd(f, z, 4))
    assert not torch.allclose(at_zero[0], at_zero[1])


@pytest.mark.parametrize("step", [0.01, 0.1, 1.0])
def test_descent_ascent_moves_away_from_the_bilinear_solution_for_every_step_size(
    step: float,
) -> None:
    oracle, sync = everywhere(BilinearGame(dim=4), 1)
    solution, z = oracle.solution(sync), oracle.z0
    distances = []
    for _ in range(50):
        z = z - step * oracle.full_operator(z)
        distances.append(float((z - solution).norm()))
    assert distances == sorted(distances)
    assert distances[-1] > (1 + (step / 2) ** 2) ** 24 * distances[0]


def test_clients_of_the_bilinear_game_without_heterogeneity_are_identical() -> None:
    oracle, sync = everywhere(BilinearGame(), 3)
    F = oracle.full_operator(oracle.z0)
    assert not (F - F[0]).any()
    assert oracle.constants(sync).xi == 0
    assert oracle.constants(sync).beta == inf


# The matrix game.


@pytest.mark.parametrize("weights", ["row", "entry"])
def test_the_policeman_and_the_burglar_play_the_stated_matrices(weights: str) -> None:
    oracle, _ = everywhere(PolicemanBurglar(weights=weights), 3)
    matrices = jacobians(oracle)[:, :5, 5:]
    z = torch.linspace(0, 1, 10, dtype=torch.float64)
    F = oracle.full_operator(oracle.site.rows(z))
    houses = torch.arange(5)
    caught = 1 - torch.exp(-0.8 * (houses[:, None] - houses).abs().double())
    for client, A in enumerate(matrices):

        def f(x: Tensor, y: Tensor, A: Tensor = A) -> Tensor:
            return x @ A @ y

        torch.testing.assert_close(F[client], by_autograd(f, z, 5))
        assert not A.diagonal().any()
        w = (A / caught).fill_diagonal_(0)
        assert (w >= 0).all()
        one_per_row = (w.sum(1, keepdim=True) / 4 - w).fill_diagonal_(0).norm() < 1e-12
        assert one_per_row == (weights == "row")
    assert not torch.allclose(matrices[0], matrices[1])


def test_weights_are_absolute_normal_numbers() -> None:
    oracle, _ = everywhere(PolicemanBurglar(dim=2), 3000)
    w = jacobians(oracle)[:, 0, 3] / (1 - np.exp(-0.8))
    assert float(w.mean()) == pytest.approx(sqrt(2 / np.pi), abs=0.04)
    assert float(w.square().mean()) == pytest.approx(1, abs=0.08)


def test_the_duality_gap_is_that_of_best_responses() -> None:
    oracle, sync = everywhere(PolicemanBurglar(start="random"), 4)
    A = jacobians(oracle).mean(0)[:5, 5:]
    x, y = oracle.z0[0].split(5)
    assert x.sum() == pytest.approx(1)
    assert (oracle.z0 >= 0).all()
    expected = max(float(x @ A[:, s]) for s in range(5)) - min(float(A[r] @ y) for r in range(5))
    assert oracle.gap(oracle.z0, sync) == pytest.approx(expected)
    # A point outside of the simplices is projected first.
    assert oracle.gap(oracle.z0 + 0.3, sync) == pytest.approx(expected)


def test_the_ball_of_the_matrix_game_contains_all_strategies() -> None:
    oracle, sync = everywhere(PolicemanBurglar(start="random"), 4)
    corners = torch.eye(5, dtype=torch.float64)
    pairs = [torch.cat([x, y]) for x in corners for y in corners]
    farthest = max(float((pair - oracle.z0[0]).norm()) for pair in pairs)
    assert oracle.radius(sync) == pytest.approx(farthest)


def test_mirror_maps_are_entropic_if_requested() -> None:
    euclidean, entropic = (everywhere(PolicemanBurglar(entropic=e), 2)[0] for e in (False, True))
    z = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(2, 10)
    softmax = torch.cat([part.softmax(1) for part in z.split(5, dim=1)], dim=1)
    torch.testing.assert_close(entropic.mirror(z, 1.0), softmax)
    torch.testing.assert_close(euclidean.mirror(z, 1.0), euclidean.prox(z, 1.0))
    assert (entropic.mirror(torch.zeros_like(z), 1.0) == entropic.z0).all()


# The smooth game that is not affine.


def logcosh(game: LogCoshSaddle, z: Tensor) -> Tensor:
    x, y = z.split(game.dim)
    terms = x.cosh().log() - y.cosh().log() + game.kappa * x.tanh() * y.tanh()
    return game.scale * terms.sum()


def test_the_logcosh_saddle_is_the_stated_function_around_its_solution() -> None:
    game = LogCoshSaddle(dim=3, kappa=0.3, scale=2.0, distance=1.5)
    oracle, sync = everywhere(game, 2)
    solution = oracle.solution(sync)
    assert float(solution.norm()) == pytest.approx(1.5)
    z = torch.linspace(-2, 1, 6, dtype=torch.float64)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return logcosh(game, torch.cat([x, y]) - solution)

    F = oracle.full_operator(oracle.site.rows(z))
    torch.testing.assert_close(F[0], by_autograd(f, z, 3))
    assert (F[0] == F[1]).all()


def pair_of(kappa: float) -> tuple[Any, Sync]:
    return everywhere(LogCoshSaddle(dim=1, kappa=kappa, scale=2.0), 1)


def pointwise_jacobians(oracle: OperatorOracle, points: Tensor) -> Tensor:
    """The Jacobian at each point, by autograd: [n, d, d]."""
    z = points.clone().requires_grad_()
    F = oracle.full_operator(z)
    columns = range(F.shape[1])
    rows = [torch.autograd.grad(F[:, k].sum(), z, retain_graph=True)[0] for k in columns]
    return torch.stack(rows, dim=1)


def test_the_skew_saddle_is_the_stated_function_around_its_solution() -> None:
    oracle, sync = everywhere(SkewSaddle(dim=3, scale=2.0, distance=1.5), 1)
    solution = oracle.solution(sync)

    def f(x: Tensor, y: Tensor) -> Tensor:
        x, y = x - solution[:3], y - solution[3:]
        u_x, u_y = x.abs() - x.abs().tanh(), y.abs() - y.abs().tanh()
        return 2.0 * (u_x - u_y + x.tanh() * y.tanh()).sum()

    x = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([-0.2, 0.7, 1.1], dtype=torch.float64, requires_grad=True)
    gx, gy = torch.autograd.grad(f(x, y), (x, y))
    F = oracle.full_operator(torch.cat([x, y]).detach()[None])[0]
    torch.testing.assert_close(F, torch.cat([gx, -gy]), rtol=1e-12, atol=1e-12)


def test_constants_of_the_skew_saddle_bound_its_jacobians_closely() -> None:
    oracle, sync = everywhere(SkewSaddle(dim=1, scale=2.0), 1)
    line = torch.linspace(-5, 5, 201, dtype=torch.float64)
    grid = oracle.solution(sync) + torch.cartesian_prod(line, line)
    known, J = oracle.constants(sync), pointwise_jacobians(oracle, grid)
    largest = float(torch.linalg.matrix_norm(J, 2).max())
    assert largest <= known.L * (1 + 1e-12) <= 1.01 * largest
    assert float(torch.linalg.eigvalsh(J + J.mT).min()) > -1e-12
    assert float(oracle.full_operator(grid).norm(dim=1).max()) <= known.G
    at_solution = pointwise_jacobians(oracle, oracle.solution(sync)[None])[0]
    torch.testing.assert_close(at_solution, -at_solution.T)


@pytest.mark.parametrize("kappa", [0.0, 0.1, 0.25, 0.4, 0.5])
def test_constants_of_the_logcosh_saddle_bound_its_jacobians_closely(kappa: float) -> None:
    oracle, sync = pair_of(kappa)
    line = torch.linspace(-4, 4, 161, dtype=torch.float64)
    grid = oracle.solution(sync) + torch.cartesian_prod(line, line)
    known, J = oracle.constants(sync), pointwise_jacobians(oracle, grid)
    largest = float(torch.linalg.matrix_norm(J, 2).max())
    assert largest <= known.L * (1 + 1e-12) <= 1.25 * largest
    S = (J + J.mT) / 2
    assert torch.linalg.eigvalsh(S).min() > 0
    root = torch.linalg.cholesky(torch.linalg.inv(S))
    beta = float(torch.linalg.eigvalsh(root.mT @ J.mT @ J @ root).max())
    assert beta <= known.beta * (1 + 1e-12) <= 1.3 * beta
    assert known.ell_exact == known.beta
    assert not known.affine


def test_the_operator_of_the_logcosh_saddle_approaches_its_bound_from_below() -> None:
    oracle, sync = everywhere(LogCoshSaddle(dim=3, scale=2.0), 1)
    G = oracle.constants(sync).G
    far = torch.from_numpy(np.random.default_rng(0).standard_normal((1000, 6))) * 20
    norms = oracle.full_operator(far).norm(dim=1)
    assert G * 0.99 < norms.max() <= G


@pytest.mark.parametrize("kappa", [0.0, 0.25, 0.5])
def test_second_order_boundedness_holds_for_random_pairs(kappa: float) -> None:
    oracle, sync = everywhere(LogCoshSaddle(dim=2, kappa=kappa), 1)
    Lambda = oracle.constants(sync).Lambda
    stream = np.random.default_rng(0)
    largest = 0.0
    for size in (0.05, 0.3, 1.0, 3.0):
        y = torch.from_numpy(2 * stream.standard_normal((4000, 4)))
        step = torch.from_numpy(size * stream.standard_normal((4000, 4)))
        turned = (pointwise_jacobians(oracle, y) @ step[:, :, None])[:, :, 0]
        change = oracle.full_operator(y + step) - oracle.full_operator(y)
        remainder = (change - turned).norm(dim=1)
        largest = max(largest, float((remainder / step.square().sum(1)).max()))
    assert 0.4 * Lambda < largest <= Lambda


def test_third_derivatives_of_the_coupling_have_norm_at_most_two() -> None:
    # The squared Frobenius norm of D^3 (tanh x tanh y), divided by 4, in A = a^2 and B = b^2.
    line = np.linspace(0, 1, 501)
    A, B = np.meshgrid(line, line)
    third_A, third_B = ((1 - s) ** 2 * (3 * s - 1) ** 2 for s in (A, B))
    norm = third_A * B + third_B * A + 3 * (A + B) * (1 - A) ** 2 * (1 - B) ** 2
    assert norm.max() <= 1 + 1e-12


def brute_force_gap(oracle: Any, sync: Sync, z: Tensor) -> float:
    """The supremum over a disc: a polar grid, then finer and finer grids around its peaks."""
    D = oracle.constants(sync).radius

    def peaks(radii: Tensor, angles: Tensor, count: int) -> tuple[float, list[list[float]]]:
        polar = torch.cartesian_prod(radii.clamp(0, D), angles)
        u = polar[:, :1] * torch.stack([polar[:, 1].cos(), polar[:, 1].sin()], dim=1)
        top = (oracle.full_operator(u) * (z - u)).sum(1).topk(count)
        return float(top.values[0]), polar[top.indices].tolist()

    radii, angles = torch.linspace(0, D, 201).double(), torch.linspace(-3.15, 3.15, 721).double()
    best, centres = peaks(radii, angles, 10)
    offsets = torch.linspace(-2, 2, 17, dtype=torch.float64)
    for centre in centres:
        (radius, angle), width = centre, 1.0
        for _ in range(14):
            reach = width * offsets
            value, [[radius, angle]] = peaks(radius + D / 200 * reach, angle + reach / 100, 1)
            best, width = max(best, value), width / 3
    return best


@pytest.mark.parametrize("distance", [0.5, 2.0, 8.0])
def test_the_gap_of_the_logcosh_saddle_is_the_supremum_on_a_grid(distance: float) -> None:
    oracle, sync = everywhere(LogCoshSaddle(dim=1, distance=distance), 1)
    solution = oracle.solution(sync)
    ways = torch.tensor([[0.0, 0], [1, 0], [-0.3, 2], [0.01, -0.02], [1e-4, 1e-4]]).double()
    for z in [*(solution + distance * ways), oracle.z0[0], -solution]:
        expected = max(0.0, brute_force_gap(oracle, sync, z))
        assert oracle.gap(z[None], sync) == pytest.approx(expected, rel=1e-6, abs=1e-14)


def test_more_starts_find_no_larger_gap_of_the_logcosh_saddle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracle, sync = everywhere(LogCoshSaddle(), 1)
    stream = np.random.default_rng(0)
    moves = torch.from_numpy(stream.standard_normal((4, 10)))
    sizes = torch.tensor([1, 0.3, 0.1, 1e-3])[:, None]
    points = oracle.solution(sync) + sizes * moves
    few = [oracle.gap(z[None], sync) for z in points]
    assert few == [oracle.gap(z[None], sync) for z in points]
    monkeypatch.setattr(_Ascent, "STARTS", 300)
    many = [oracle.gap(z[None], sync) for z in points]
    assert few == pytest.approx(many, rel=1e-6)


def test_the_gap_of_the_logcosh_saddle_is_computed_quickly() -> None:
    oracle, sync = everywhere(LogCoshSaddle(), 1)
    oracle.gap(oracle.z0, sync)
    before = process_time()
    oracle.gap(oracle.z0, sync)
    assert process_time() - before < 0.2


# The composite saddle point.


def test_the_composite_saddle_is_the_stated_function() -> None:
    oracle, _ = everywhere(CompositeSaddle(dim=3, support=2, heterogeneity=1.0), 3)
    z = torch.linspace(-2, 1, 6, dtype=torch.float64)
    at_zero, at_z = operators(oracle, torch.stack([torch.zeros_like(z), z]))
    for client, J in enumerate(jacobians(oracle)):
        A, B, C = J[:3, :3], J[:3, 3:], J[3:, 3:]
        a, c = at_zero[client].split(3)
        for curved in (A, C):
            values = torch.linalg.eigvalsh(curved)
            assert 0.1 - 1e-12 <= values[0] <= values[-1] <= 1 + 1e-12

        def f(
            x: Tensor,
            y: Tensor,
            A: Tensor = A,
            B: Tensor = B,
            C: Tensor = C,
            a: Tensor = a,
            c: Tensor = c,
        ) -> Tensor:
            return x @ A @ x / 2 + x @ B @ y - y @ C @ y / 2 + a @ x - c @ y

        torch.testing.assert_close(at_z[client], by_autograd(f, z, 3))


@pytest.mark.parametrize("heterogeneity", [0.0, 5.0])
def test_the_planted_solution_is_sparse_and_strictly_complementary(heterogeneity: float) -> None:
    problem = CompositeSaddle(dim=10, support=7, weight=0.2, heterogeneity=heterogeneity)
    oracle, sync = everywhere(problem, 5)
    z = oracle.solution(sync)
    force = -sync(oracle.full_operator(oracle.site.rows(z)))[0]
    on = z != 0
    assert int(on.sum()) == 7
    torch.testing.assert_close(force[on], 0.2 * z[on].sign())
    assert (force[~on].abs() <= 0.18 + 1e-12).all()


def test_the_composite_gap_matches_a_random_search() -> None:
    oracle, sync = everywhere(CompositeSaddle(dim=2, support=2, weight=0.3), 2)
    J, D = jacobians(oracle)[0], oracle.radius(sync)
    b = oracle.full_operator(torch.zeros_like(oracle.z0))[0]
    stream = np.random.default_rng(0)
    for size in (0.01, 1.0, 5.0):
        z = oracle.solution(sync) + size * torch.from_numpy(stream.standard_normal(4))

        def value(u: Tensor, z: Tensor = z) -> Tensor:
            smooth = ((u @ J.T + b) * (z - u)).sum(-1)
            return smooth + 0.3 * (z.abs().sum() - u.abs().sum(-1))

        gap = oracle.gap(z[None], sync)
        # Random points of the ball, then of smaller and smaller boxes around the best one.
        u, reach = torch.zeros(4, dtype=torch.float64), D
        for _ in range(60):
            near = u + reach * torch.from_numpy(stream.uniform(-1, 1, (2000, 4)))
            near[::4] *= torch.from_numpy(stream.integers(0, 2, (500, 4)))
            near = near * (D / near.norm(dim=1, keepdim=True).clamp(min=D))
            near = torch.cat([near, u[None]])
            assert (value(near) <= gap + 1e-12).all()
            u, reach = near[value(near).argmax()], 0.8 * reach
        assert float(value(u)) == pytest.approx(gap, rel=1e-4, abs=1e-7)


# Invalid options.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RobustLeastSquares(source="x"), "source must be one of synthetic, california"),
        (lambda: RobustLeastSquares(rows=0), "robust_least_squares: rows must be at least 1"),
        (lambda: RobustLeastSquares(features=0), "features must be at least 1, got 0"),
        (lambda: RobustLeastSquares(lam=1.0), r"lam must be above 1, got 1\.0"),
        (lambda: RobustLeastSquares(residual_std=-1.0), "residual_std must be at least 0"),
        (lambda: RobustLeastSquares(batch_size=0), "batch_size must be at least 1, or null"),
        (
            lambda: RobustLeastSquares().oracle(Site(Placement(7))),
            "rows must be a multiple of clients=7, got 200",
        ),
        (lambda: HeterogeneousToy(heterogeneity="mid"), "toy: heterogeneity must be low or high"),
        (lambda: HeterogeneousToy(dim=0), "toy: dim must be at least 1, got 0"),
        (lambda: HeterogeneousToy(lam=0.0), "toy: lam must be positive"),
        (lambda: TwoPoints(delta=-1.0), "two_points: delta must be at least 0"),
        (lambda: TwoPoints(delta=2.0), "and not 2"),
        (lambda: TwoPoints().oracle(Site(Placement(3))), "clients must be 2, got 3; use clients=2"),
        (lambda: BilinearGame(dim=0), "bilinear: dim must be at least 1"),
        (lambda: BilinearGame(heterogeneity=-1.0), "bilinear: heterogeneity must be at least 0"),
        (lambda: PolicemanBurglar(dim=1), "policeman_burglar: dim must be at least 2"),
        (lambda: PolicemanBurglar(weights="all"), "weights must be row or entry, got 'all'"),
        (lambda: PolicemanBurglar(start="x"), "start must be uniform or random, got 'x'"),
        (lambda: LogCoshSaddle(kappa=0.6), r"kappa must be in \[0, 1/2\], got 0\.6"),
        (lambda: LogCoshSaddle(scale=0.0), "scale must be positive"),
        (lambda: LogCoshSaddle(distance=0.0), "logcosh_saddle: distance must be positive"),
        (lambda: CompositeSaddle(support=41), "support must be from 1 to 2 dim = 40, got 41"),
        (lambda: CompositeSaddle(weight=0.0), "composite_saddle: weight must be positive"),
        (lambda: CompositeSaddle(mu=0.0), r"mu must be in \(0, 1\], got 0\.0"),
        (lambda: CompositeSaddle(heterogeneity=-1.0), "heterogeneity must be at least 0"),
    ],
)
def test_invalid_options_are_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("name", GAMES)
def test_negative_noise_is_refused(name: str) -> None:
    problem, _ = GAMES[name]
    with pytest.raises(InputError, match=r"noise must be at least 0, got -1"):
        type(problem)(**{**vars(problem), "noise": -1})
