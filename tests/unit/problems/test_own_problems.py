"""Problems from functions: forms of variables, data, draws, ways to compute, terms, estimates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedsys
from fedsys.algorithms import EG, GDA, LESGD, LSGD, FedAvg, LocalSGDA, ProxSkip
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems import QuadraticGame
from fedsys.problems.custom.estimates import Estimates
from fedsys.problems.games.affine_constants import affine_gap
from fedsys.problems.terms import L1, L2, Ball, Box, NuclearNorm, Simplex

CLIENTS, DIM = 4, 6
_rng = np.random.default_rng(3)
_raw = _rng.standard_normal((CLIENTS, DIM, DIM))
MATRICES = np.eye(DIM) + 0.3 * (_raw - _raw.swapaxes(1, 2))
OFFSETS = _rng.standard_normal((CLIENTS, DIM))
DATA = list(zip(MATRICES, OFFSETS, strict=True))
SOLUTION = -np.linalg.solve(MATRICES.mean(0), OFFSETS.mean(0))
Z0 = torch.zeros(DIM, dtype=torch.float64)
SETTINGS: dict[str, Any] = {"clients": CLIENTS, "dtype": "float64", "device": "cpu"}


def affine(z: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
    M, b = data
    return M @ z + b


def all_at_once(z: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
    M, b = data
    return torch.einsum("cij,cj->ci", M, z) + b


def site(clients: int = CLIENTS, seed: int = 7, rank: int = 0, ranks: int = 1) -> Site:
    return Site(Placement(clients, rank, ranks), seed=seed, dtype=torch.float64)


def unmetered(clients: int = CLIENTS) -> Sync:
    communicator = AllReduce()
    communicator.open(LocalTransport(), Placement(clients), Every(1))
    return communicator.unmetered()


def solve(problem: Any, algorithm: Any, steps: int = 400) -> Any:
    return fedsys.run(problem, algorithm, steps=steps, evaluate_every=10**6, **SETTINGS)


# Forms of variables.


def test_a_matrix_keeps_its_shape_in_functions_and_metrics() -> None:
    shapes = []

    def operator(z: Tensor, client: int) -> Tensor:
        shapes.append(tuple(z.shape))
        return z - client

    def metrics(z: Tensor) -> dict[str, float]:
        shapes.append(tuple(z.shape))
        return {"corner": z[1, 2]}

    problem = fedsys.VariationalProblem(operator, np.zeros((2, 3)), metrics=metrics)
    record = solve(problem, LSGD(lr=0.5, local_steps=1), 80).records[-1]
    assert {*shapes} == {(2, 3)}
    assert record["corner"] == pytest.approx(1.5)


def test_a_list_and_a_number_are_starting_points() -> None:
    problem = fedsys.MinimaxProblem(
        lambda x, y, m: x.square().sum() + x.sum() * y - y.square() + m * y, [1.0, 2.0], 3.0
    )
    oracle = problem.oracle(site())
    assert oracle.x0[0].tolist() == [1.0, 2.0]
    assert oracle.y0[0].tolist() == [3.0]
    gx, gy = oracle.grads(oracle.x0, oracle.y0, oracle.draw())
    # grad_x = 2 x + y, grad_y = x_1 + x_2 - 2 y + m
    assert gx[1].tolist() == [5.0, 7.0]
    assert gy[:, 0].tolist() == [-3.0, -2.0, -1.0, 0.0]


def test_a_dictionary_of_variables_is_what_functions_get_and_return() -> None:
    def operator(z: dict[str, Tensor], client: int) -> dict[str, Tensor]:
        return {"price": z["price"] - client, "demand": z["demand"] + 2.0}

    problem = fedsys.VariationalProblem(operator, {"price": torch.zeros(2), "demand": [[0.0]]})
    result = solve(problem, LSGD(lr=0.5, local_steps=1), 80)
    z = problem.oracle(site()).named(torch.tensor([1.0, 2.0, 3.0]))
    assert {name: value.shape for name, value in z.items()} == {
        "z.price": torch.Size([2]),
        "z.demand": torch.Size([1, 1]),
    }
    assert float(result.state.z[0, 2]) == pytest.approx(-2.0)
    assert result.state.z[0, :2].tolist() == pytest.approx([1.5, 1.5])


def test_a_module_is_a_variable_and_trains_as_its_parameters_do() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    inputs = torch.from_numpy(_rng.standard_normal((CLIENTS, 5, 3)))

    def loss(net: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        return (net(inputs)[:, 0] - inputs.sum(1)).square().mean()

    problem = fedsys.MinimisationProblem(loss, net, client_data=list(inputs))
    oracle = problem.oracle(site())
    gradient = oracle.grad(oracle.x0, oracle.draw())
    for client in range(CLIENTS):
        net.zero_grad()
        loss(net, inputs[client]).backward()
        by_hand = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        torch.testing.assert_close(gradient[client], by_hand, rtol=1e-12, atol=1e-14)


def test_a_module_with_batch_norm_is_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(InputError, match=r"x has BatchNorm1d.*GroupNorm"):
        fedsys.MinimisationProblem(lambda net, m: net(torch.ones(1, 2)).sum(), net).oracle(site())


# Data and draws.


def test_client_data_is_asked_for_hosted_clients_only() -> None:
    asked = []

    def data(client: int) -> tuple[np.ndarray, np.ndarray]:
        asked.append(client)
        return DATA[client]

    problem = fedsys.VariationalProblem(affine, Z0, client_data=data)
    problem.oracle(site(rank=1, ranks=2))
    assert asked == [2, 3]


def test_a_function_may_ask_for_a_generator_of_torch_or_of_numpy() -> None:
    def with_torch(z: Tensor, client: int, rng: torch.Generator) -> Tensor:
        return z + torch.rand((), generator=rng, dtype=torch.float64)

    def with_numpy(z: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        return z + float(rng.random())

    for function in (with_torch, with_numpy):
        problem = fedsys.VariationalProblem(function, Z0)
        one, two = (problem.oracle(site()).at(5) for _ in range(2))
        first = one.operator(one.z0, one.draw())
        assert torch.equal(first, two.operator(two.z0, two.draw()))
        assert not torch.equal(first, one.operator(one.z0, one.draw()))
        assert len({*first[:, 0].tolist()}) == CLIENTS


def test_an_epoch_has_every_sample_once() -> None:
    seen: list[int] = []

    def loss(x: Tensor, client: int, sample: int) -> Tensor:
        if client == 1:
            seen.append(int(sample))
        return x.square().sum()

    problem = fedsys.MinimisationProblem(
        loss, [1.0], samples=6, batch_size=2, sampling="epochs", vectorize="loop"
    )
    oracle = problem.oracle(site())
    seen.clear()
    for step in range(6):
        bound = oracle.at(step)
        bound.grad(bound.x0, bound.draw())
    assert sorted(seen[:6]) == sorted(seen[6:]) == list(range(6))
    assert seen[:6] != seen[6:]


def test_given_draws_take_the_place_of_random_ones() -> None:
    seen = []

    def loss(x: Tensor, client: int, sample: int) -> Tensor:
        seen.append((client, int(sample)))
        return x.square().sum()

    problem = fedsys.MinimisationProblem(loss, [1.0], samples=6, vectorize="loop")
    result = fedsys.run(
        problem,
        FedAvg(lr=0.1, local_steps=2),
        steps=2,
        draws=lambda client, step, k: (client + step) % 6,
        on_step=lambda step, state: seen.clear() if step == 0 else None,
        **SETTINGS,
    )
    assert {(3, 3), (3, 4)} <= {*seen}
    assert result.records[-1]["oracle_calls"] == 2
    with pytest.raises(
        InputError, match=r"draws: 1 of the samples 0 to 5 must be given for client 0"
    ):
        fedsys.run(problem, FedAvg(lr=0.1), steps=1, draws=lambda client, step, k: 9, **SETTINGS)


def test_a_function_of_a_batch_is_the_mean_of_the_function_of_its_samples() -> None:
    features = torch.from_numpy(_rng.standard_normal((CLIENTS, 9, 3)))

    def of_sample(x: Tensor, A: Tensor, sample: Any) -> Tensor:
        return (A[sample] @ x - 1).square()

    def of_batch(x: Tensor, A: Tensor, samples: Tensor) -> Tensor:
        return (A[samples] @ x - 1).square().mean()

    options: dict[str, Any] = {"client_data": list(features), "samples": 9, "batch_size": 4}
    one = fedsys.MinimisationProblem(of_sample, np.ones(3), **options).oracle(site())
    two = fedsys.MinimisationProblem(of_batch, np.ones(3), per_batch=True, **options).oracle(site())
    torch.testing.assert_close(one.grad(one.x0, one.draw()), two.grad(two.x0, two.draw()))
    full = one.full_operator(one.x0)
    by_hand = 2 * torch.einsum("cij,ci->cj", features, features.sum(2) - 1) / 9
    torch.testing.assert_close(full, by_hand, rtol=1e-12, atol=1e-13)


def test_saga_solves_a_declared_finite_sum_to_rounding() -> None:
    b = torch.from_numpy(_rng.standard_normal((CLIENTS, 5, 3)))

    def operator(z: Tensor, b: Tensor, sample: Any) -> Tensor:
        return (1 + 0.1 * sample) * z + b[sample]

    solution = -b.mean((0, 1)) / 1.2
    problem = fedsys.VariationalProblem(
        operator, np.zeros(3), client_data=list(b), samples=5, solution=solution
    )
    record = solve(problem, ProxSkip(lr=0.1, p=0.5, estimator="saga"), 1500).records[-1]
    assert record["relative_error"] < 1e-25


def test_the_mean_over_stated_draws_serves_algorithms_that_need_full_operators() -> None:
    def noisy(z: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        return z - client + float(rng.standard_normal())

    problem = fedsys.VariationalProblem(noisy, Z0, mean_draws=400)
    oracle = problem.oracle(site())
    F = oracle.full_operator(oracle.z0)
    assert torch.equal(F, oracle.at(9).full_operator(oracle.z0))
    assert float((F[:, 0] + torch.arange(4)).abs().max()) < 0.2  # 4 deviations of 1/sqrt(400)


# Ways to compute.


def test_loop_map_and_batched_functions_give_the_same_trajectory() -> None:
    finals = []
    for options in ({"vectorize": "loop"}, {"vectorize": "vmap"}, {"batched": True}):
        function = all_at_once if "batched" in options else affine
        problem = fedsys.VariationalProblem(function, Z0, client_data=DATA, **options)
        finals.append(solve(problem, LESGD(lr=0.1, local_steps=3), 30).state.z)
    for final in finals[1:]:
        torch.testing.assert_close(final, finals[0], rtol=0, atol=1e-13)


def test_mapped_gradients_are_those_of_the_loop_for_branches_that_torch_expresses() -> None:
    def loss(x: Tensor, y: Tensor, m: Any) -> Tensor:
        return torch.where(x > 0.5, x.square(), x.abs() / 2).sum() + (x * y).sum() - y.cosh().sum()

    x, y = torch.linspace(-1, 1, 5).double(), torch.linspace(0, 1, 5).double()
    ways = [
        fedsys.MinimaxProblem(loss, x, y, vectorize=way).oracle(site()) for way in ("vmap", "loop")
    ]
    for shift in (0.0, 0.4):
        first, second = (one.grads(one.x0 + shift, one.y0, one.draw()) for one in ways)
        for a, b in zip(first, second, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-15)


def test_a_function_that_branches_on_values_is_computed_in_a_loop_and_says_so_once() -> None:
    def operator(z: Tensor, client: int) -> Tensor:
        return z if float(z.sum()) > 100 else z - client

    problem = fedsys.VariationalProblem(operator, Z0)
    oracle = problem.oracle(site())
    assert "one client after another" in oracle.warnings["vectorize"]
    assert oracle.operator(oracle.z0, oracle.draw())[:, 0].tolist() == [0.0, -1.0, -2.0, -3.0]
    with pytest.raises(InputError, match="vectorize='vmap' is not possible"):
        fedsys.VariationalProblem(operator, Z0, vectorize="vmap").oracle(site())


def test_given_gradients_take_the_place_of_autograd() -> None:
    def loss(x: Tensor, y: Tensor, m: Any) -> Tensor:
        return (x.square() / 2 + x * y - y.square() / 2 + m * x).sum()

    def grads(x: Tensor, y: Tensor, m: Any) -> tuple[Tensor, Tensor]:
        return x + y + m, x - y

    one = fedsys.MinimaxProblem(loss, [1.0], [2.0]).oracle(site())
    two = fedsys.MinimaxProblem(loss, [1.0], [2.0], grads=grads).oracle(site())
    for a, b in zip(one.full_grads(one.x0, one.y0), two.full_grads(two.x0, two.y0), strict=True):
        assert torch.equal(a, b)


# What is measured.


def test_the_gap_of_an_affine_operator_is_exact_and_another_one_is_a_lower_bound() -> None:
    game = QuadraticGame(dim=3, samples=1)
    known = game.oracle(site())
    M, b = known.mean_game(unmetered())
    problem = fedsys.VariationalProblem(
        affine,
        np.zeros(6),
        client_data=list(zip(known._mean_M, known._mean_b, strict=True)),
        gap=2.0,
    )
    own = problem.oracle(site())
    z = torch.ones(CLIENTS, 6, dtype=torch.float64)
    exact = affine_gap(M, b, z[0], torch.zeros(6, dtype=torch.float64), 2.0)
    assert own.evaluate(z, unmetered())["gap"] == pytest.approx(exact, rel=1e-9)
    bound = own._estimates._ascended(z, 2.0, unmetered())
    assert 0.9 * exact <= bound <= exact * (1 + 1e-9)
    curved = fedsys.VariationalProblem(lambda z, m: z + z**3, np.zeros(2), gap=1.0).oracle(site())
    assert "gap_lower_bound" in curved.evaluate(torch.ones(CLIENTS, 2).double(), unmetered())


@pytest.mark.parametrize("dense", [512, 1], ids=["linear algebra", "Lanczos"])
def test_estimated_constants_are_those_of_the_quadratic_game(dense: int) -> None:
    known = QuadraticGame(dim=20, samples=1).oracle(site())
    data = list(zip(known._mean_M, known._mean_b, strict=True))
    problem = fedsys.VariationalProblem(
        affine, np.zeros(40), client_data=data, constants="estimate"
    )
    own = problem.oracle(site())
    own._estimates = Estimates(own, 20, 0.0, dense)
    exact, found = known.constants(unmetered()), own.constants(unmetered())
    assert found is not None
    assert pytest.approx(exact.L, rel=0.01) == found.L
    assert found.mu == pytest.approx(exact.mu, rel=0.01)
    if dense > 1:
        assert found.ell_exact == pytest.approx(exact.ell_exact, rel=0.01)
        assert found.ell_spectral == pytest.approx(exact.ell_spectral, rel=0.01)
        assert found.exact
    else:
        assert found.ell_exact >= exact.ell_exact * 0.99
        assert not found.exact
    assert found.source


def test_theory_with_estimated_constants_is_the_run_of_the_built_in_game() -> None:
    game = QuadraticGame(dim=5, samples=8, batch_size=1)
    known = game.oracle(Site(Placement(CLIENTS), seed=0, dtype=torch.float64))
    samples = list(zip(known._M, known._b, strict=True))

    def operator(z: Tensor, data: tuple[Tensor, Tensor], sample: Any) -> Tensor:
        M, b = data
        return M[sample] @ z + b[sample]

    own = fedsys.VariationalProblem(
        operator, np.zeros(10), client_data=samples, samples=8, constants="estimate"
    )
    ours, theirs = (
        fedsys.run(one, ProxSkip(), steps=5, **SETTINGS).algorithm for one in (own, game)
    )
    assert ours.lr == pytest.approx(theirs.lr, rel=1e-6)
    assert ours.p == pytest.approx(theirs.p, rel=1e-6)


@pytest.mark.parametrize("algorithm", [ProxSkip(), GDA(), EG()], ids=lambda a: type(a).__name__)
def test_theory_with_estimated_constants_converges_at_the_rate_of_the_exact_ones(
    algorithm: Any,
) -> None:
    """The error falls by the same number of decades per step, to 2 %."""
    game = QuadraticGame(dim=5, samples=1)
    known = game.oracle(Site(Placement(CLIENTS), seed=0, dtype=torch.float64))
    data = list(zip(known._mean_M, known._mean_b, strict=True))
    solution = known.solution(unmetered())
    own = fedsys.VariationalProblem(
        affine, np.zeros(10), client_data=data, solution=solution, constants="estimate"
    )
    rates = []
    for problem in (own, game):
        last = solve(problem, algorithm, 250).records[-1]
        assert 1e-26 < last["relative_error"] < 1e-3
        rates.append(np.log10(last["relative_error"]) / 250)
    assert rates[0] == pytest.approx(rates[1], rel=0.02)


def test_constants_that_are_given_make_theory_work() -> None:
    constants = fedsys.Constants(mu=1.0, L=2.0, ell_spectral=4.0, ell_exact=4.0)
    problem = fedsys.VariationalProblem(affine, Z0, client_data=DATA, constants=constants)
    result = solve(problem, ProxSkip(), 5)
    assert result.algorithm.lr == pytest.approx(1 / 8)  # Corollary 3.6: 1 / (2 ell)
    assert result.algorithm.p == pytest.approx((1 / 8) ** 0.5)


def test_a_known_solution_gives_the_relative_error() -> None:
    problem = fedsys.VariationalProblem(affine, Z0, client_data=DATA, solution=SOLUTION)
    record = solve(problem, ProxSkip(lr=0.3, p=0.5), 300).records
    assert record[0]["relative_error"] == 1.0
    assert record[-1]["relative_error"] < 1e-20


# Terms, against a long run of extra-gradient in NumPy.


def _shrunk_matrix(v: np.ndarray, t: float) -> np.ndarray:
    U, s, Vh = np.linalg.svd(v.reshape(2, 3), full_matrices=False)
    return ((U * np.maximum(s - t, 0)) @ Vh).ravel()


def _onto_simplex(v: np.ndarray) -> np.ndarray:
    u = np.sort(v)[::-1]
    k = np.arange(1, len(v) + 1)
    excess = (np.cumsum(u) - 1) / k
    return np.maximum(v - excess[np.sum(u > excess) - 1], 0)


TERMS: dict[str, tuple[Any, Callable[[np.ndarray, float], np.ndarray]]] = {
    "l1": (L1(0.2), lambda v, t: np.sign(v) * np.maximum(np.abs(v) - 0.2 * t, 0)),
    "l2": (L2(0.5), lambda v, t: v / (1 + 0.5 * t)),
    "box": (Box(-0.1, 0.3), lambda v, t: np.clip(v, -0.1, 0.3)),
    "ball": (Ball(0.4), lambda v, t: v * min(1.0, 0.4 / np.linalg.norm(v))),
    "simplex": (Simplex(), lambda v, t: _onto_simplex(v)),
    "nuclear": (NuclearNorm(0.3), lambda v, t: _shrunk_matrix(v, 0.3 * t)),
}


def reference_solution(prox: Callable[[np.ndarray, float], np.ndarray]) -> np.ndarray:
    M, b, z = MATRICES.mean(0), OFFSETS.mean(0), np.zeros(DIM)
    for _ in range(4000):
        half = prox(z - 0.2 * (M @ z + b), 0.2)
        z = prox(z - 0.2 * (M @ half + b), 0.2)
    return z


@pytest.mark.parametrize("name", TERMS)
def test_a_term_of_every_kind_is_solved_as_by_a_long_reference_run(name: str) -> None:
    term, prox = TERMS[name]

    def operator(z: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
        M, b = data
        return (M @ z.flatten() + b).reshape(z.shape)

    start = np.zeros((2, 3)) if name == "nuclear" else np.zeros(6)
    problem = fedsys.VariationalProblem(operator, start, client_data=DATA, terms=term)
    z = solve(problem, ProxSkip(lr=0.2, p=0.5), 1500).variables["z"].flatten()
    np.testing.assert_allclose(z.numpy(), reference_solution(prox), rtol=0, atol=1e-9)


def test_a_term_is_any_object_with_a_proximal_map() -> None:
    class Positive:
        def prox(self, v: Tensor, step: Any) -> Tensor:
            return v.clamp(min=0)

    problem = fedsys.VariationalProblem(affine, Z0, client_data=DATA, terms=Positive())
    z = solve(problem, ProxSkip(lr=0.2, p=0.5), 1500).variables["z"].flatten()
    expected = reference_solution(lambda v, t: np.maximum(v, 0))
    np.testing.assert_allclose(z.numpy(), expected, rtol=0, atol=1e-9)


def test_an_algorithm_that_applies_no_terms_refuses_them_by_name() -> None:
    problem = fedsys.VariationalProblem(affine, Z0, client_data=DATA, terms=L1(0.1))
    with pytest.raises(InputError, match=r"LESGD.*L1\(weight=0.1\)|LocalSGDA.*L1\(weight=0.1\)"):
        solve(problem, LocalSGDA(lr_x=0.1, lr_y=0.1), 2)


# Mistakes.


def _missing_return(z: Tensor, m: int) -> None:
    z + 1


class _Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, z: Tensor, m: int) -> Tensor:
        self.calls += 1
        return z * self.calls


def _raises(z: Tensor, m: int) -> Tensor:
    raise KeyError("age")


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "wrong shape": (
        lambda: fedsys.VariationalProblem(lambda z, m: z[:2], Z0),
        r"operator\(z, ...\) returned a tensor of shape \[2\]; expected a tensor of shape \[6\]",
    ),
    "wrong dtype": (
        lambda: fedsys.VariationalProblem(lambda z, m: z.float(), Z0),
        r"returned torch.float32.*the run has torch.float64.*dtype='float32'",
    ),
    "wrong device": (
        lambda: fedsys.VariationalProblem(lambda z, m: z.to("meta"), Z0),
        r"operator\(z, ...\) returned a tensor on meta, not on cpu",
    ),
    "missing argument": (
        lambda: fedsys.MinimaxProblem(lambda x: x.sum(), [1.0], [1.0]),
        r"loss must take \(x, y, data\) or \(x, y, data, rng\), got \(x\)",
    ),
    "too many arguments": (
        lambda: fedsys.MinimisationProblem(lambda x, a, b, c: x.sum(), [1.0]),
        r"loss must take \(x, data\) or \(x, data, rng\), got \(x, a, b, c\)",
    ),
    "not a scalar": (
        lambda: fedsys.MinimisationProblem(lambda x, m: x.square(), [1.0, 2.0]),
        r"loss\(x, ...\) returned a tensor of shape \[2\]; expected a tensor with one number; take",
    ),
    "nan": (
        lambda: fedsys.MinimisationProblem(lambda x, m: (-1 - x.square()).log().sum(), [1.0]),
        r"loss\(x, ...\) returned nan or inf at the starting point of client 0",
    ),
    "keeps state": (
        lambda: fedsys.VariationalProblem(_Counting(), np.ones(2)),
        r"returned two values for the same arguments \(client 0\): it keeps state",
    ),
    "keeps state, batched": (
        lambda: fedsys.VariationalProblem(_Counting(), np.ones(2), batched=True),
        r"is batched and returned two values for the same arguments: it keeps state",
    ),
    "random numbers, batched": (
        lambda: fedsys.VariationalProblem(
            lambda z, m: z + torch.randn_like(z), np.ones(2), batched=True
        ),
        r"draws random numbers; draw them from rng with batched=False, or declare samples=",
    ),
    "random numbers, batched, samples": (
        lambda: fedsys.VariationalProblem(
            lambda z, m, j: z * np.random.rand(), np.ones(2), batched=True, samples=3
        ),
        r"draws random numbers; draw them from rng",
    ),
    "random numbers, batched, all samples": (
        lambda: fedsys.MinimisationProblem(
            lambda x, m, j: x.square().sum(1) * torch.rand(()),
            np.ones(2),
            batched=True,
            samples=3,
            batch_size=None,
        ),
        r"draws random numbers; draw them from rng",
    ),
    "no return": (
        lambda: fedsys.VariationalProblem(_missing_return, Z0),
        r"returned None \(is there a return statement\?\)",
    ),
    "not differentiable": (
        lambda: fedsys.MinimisationProblem(
            lambda x, m: torch.tensor(float(x.detach().sum())).double(), [1.0]
        ),
        r"returned a value that torch cannot differentiate",
    ),
    "raises": (
        lambda: fedsys.VariationalProblem(_raises, Z0),
        r"operator\(z, ...\) raised KeyError for client 0: 'age' \(FEDSYS_DEBUG=1",
    ),
    "number in place of a tensor": (
        lambda: fedsys.MinimisationProblem(lambda x, m: 1.0, [1.0]),
        r"returned a float; expected a tensor with one number",
    ),
    "no sample argument": (
        lambda: fedsys.MinimisationProblem(lambda x, m: x.sum(), [1.0], samples=3),
        r"must take \(x, data, sample\), because samples= declares a finite sum",
    ),
    "text as starting point": (
        lambda: fedsys.MinimisationProblem(lambda x, m: x.sum(), "zero"),
        r"x must be a tensor, an array, a list of numbers",
    ),
    "list of another length": (
        lambda: fedsys.VariationalProblem(affine, Z0, client_data=DATA[:2]),
        r"client_data has 2 entries for clients=4",
    ),
    "wrong keys": (
        lambda: fedsys.VariationalProblem(lambda z, m: {"b": z["a"]}, {"a": [1.0]}),
        r"returned the keys b; expected a dictionary of tensors \(a: \[1\]\)",
    ),
    "term without prox": (
        lambda: fedsys.VariationalProblem(affine, Z0, client_data=DATA, terms=3),
        r"a term must have a method prox\(v, step\), which int lacks",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_with_functions_gets_one_line(name: str) -> None:
    make, line = MISTAKES[name]
    problem = make()
    with pytest.raises(InputError, match=line) as error:
        fedsys.run(
            problem, FedAvg(lr=0.1) if hasattr(problem, "x") else LSGD(lr=0.1), steps=1, **SETTINGS
        )
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(type(problem).__name__)


def test_the_old_name_of_the_variational_problem_says_the_new_one() -> None:
    with pytest.raises(AttributeError, match=r"OperatorProblem is now fedsys\.VariationalProblem"):
        fedsys.OperatorProblem  # noqa: B018
