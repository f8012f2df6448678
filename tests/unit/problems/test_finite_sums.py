"""Finite sums declared by `samples`: full operators are exact means, or an error is raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import CASES, Case, Drive
from torch import Tensor

import fedsys
from fedsys.algorithms import CDMA, FedGDAGT, FedNest, LocalSGDA, ProxSkipLSVRGDA
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.algorithm import Algorithm
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.random import generator
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.core.sync import Sync

CLIENTS, SAMPLES, DIM = 3, 5, 4

_rng = np.random.default_rng(0)
_skew = _rng.standard_normal((CLIENTS, SAMPLES, DIM, DIM))
_MATRICES = torch.from_numpy(np.eye(DIM) + (_skew - _skew.swapaxes(2, 3)) / 4)
_OFFSETS = torch.from_numpy(_rng.standard_normal((CLIENTS, SAMPLES, DIM)))
SOLUTION = -torch.linalg.solve(_MATRICES.mean((0, 1)), _OFFSETS.mean((0, 1)))


def of_sample(z: Tensor, client: int, sample: int) -> Tensor:
    return _MATRICES[client, sample] @ z + _OFFSETS[client, sample]


def of_generator(z: Tensor, client: int, rng: np.random.Generator) -> Tensor:
    return of_sample(z, client, int(rng.integers(SAMPLES)))


def error(z: Tensor) -> dict[str, float]:
    return {"error": float((z - SOLUTION).square().sum())}


START = torch.ones(DIM, dtype=torch.float64)
DECLARED = fedsys.VariationalProblem(of_sample, START, metrics=error, samples=SAMPLES)
NOISY = fedsys.VariationalProblem(of_generator, START, metrics=error)
SVRG = ProxSkipLSVRGDA(lr=0.1, p=0.5, q=0.2)


def run(problem: Any, algorithm: Algorithm[Any, Any], steps: int = 3) -> dict[str, float]:
    settings = {"clients": CLIENTS, "dtype": "float64", "device": "cpu", "evaluate_every": 1000}
    return fedsys.run(problem, algorithm, steps=steps, **settings).records[-1]


def site(clients: int = CLIENTS) -> Site:
    return Site(Placement(clients), seed=7, dtype=torch.float64)


def unmetered(clients: int = CLIENTS) -> Sync:
    communicator = AllReduce()
    communicator.open(LocalTransport(), Placement(clients), Every(1))
    return communicator.unmetered()


def test_variance_reduction_solves_a_declared_finite_sum_to_rounding() -> None:
    assert run(DECLARED, SVRG, steps=600)["error"] < 1e-25


def test_the_full_operator_of_a_declared_finite_sum_is_the_mean_over_all_samples() -> None:
    oracle = DECLARED.oracle(site())
    for step in (0, 9):
        F = oracle.at(step).full_operator(oracle.z0)
        by_hand = (_MATRICES.mean(1) @ START) + _OFFSETS.mean(1)
        torch.testing.assert_close(F, by_hand, rtol=0, atol=1e-14)
    z = SOLUTION.expand(CLIENTS, -1)
    assert oracle.evaluate(z, unmetered())["operator_norm"] < 1e-14


def test_a_draw_of_a_finite_sum_is_a_sample_of_seed_client_step_and_k() -> None:
    oracle = DECLARED.oracle(site()).at(4)
    for k in range(3):
        F = oracle.operator(oracle.z0, oracle.draw())
        for client in range(CLIENTS):
            sample = int(generator(7, "function", client, 4, k).integers(SAMPLES, size=1)[0])
            by_hand = of_sample(START, client, sample)
            torch.testing.assert_close(F[client], by_hand, rtol=0, atol=1e-15)


def test_a_batch_is_the_mean_of_its_samples_and_none_uses_all_of_them() -> None:
    problem = fedsys.VariationalProblem(of_sample, START, samples=SAMPLES, batch_size=3)
    oracle = problem.oracle(site()).at(1)
    F = oracle.operator(oracle.z0, oracle.draw())
    picks = generator(7, "function", 2, 1, 0).integers(SAMPLES, size=3)
    by_hand = sum((of_sample(START, 2, int(j)) for j in picks), torch.zeros(DIM)) / 3
    torch.testing.assert_close(F[2], by_hand, rtol=0, atol=1e-15)
    assert oracle.finite_sum
    whole = fedsys.VariationalProblem(of_sample, START, samples=SAMPLES, batch_size=None)
    oracle = whole.oracle(site())
    full = oracle.full_operator(oracle.z0)
    torch.testing.assert_close(oracle.operator(oracle.z0, oracle.draw()), full, rtol=0, atol=1e-15)
    assert not oracle.finite_sum


def test_clients_may_have_different_numbers_of_samples_which_are_their_sizes() -> None:
    problem = fedsys.VariationalProblem(of_sample, START, samples=lambda client: client + 1)
    oracle = problem.oracle(site())
    assert oracle.sizes == [1, 2, 3]
    F = oracle.full_operator(oracle.z0)
    for client in range(CLIENTS):
        part = [of_sample(START, client, j) for j in range(client + 1)]
        torch.testing.assert_close(F[client], torch.stack(part).mean(0), rtol=0, atol=1e-15)


NEED_FULL: dict[str, Algorithm[Any, Any]] = {
    "ProxSkipLSVRGDA": SVRG,
    "FedGDAGT": FedGDAGT(lr=0.1, local_steps=2),
    "FedNest": FedNest(lr_x=0.1, lr_y=0.1, local_steps=2),
    "CDMA": CDMA(lr_x=0.1, lr_y=0.1, local_steps=2),
}


@pytest.mark.parametrize("name", NEED_FULL)
def test_an_algorithm_that_needs_full_operators_refuses_noisy_functions(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} needs full operators.*declare samples=n") as e:
        run(NOISY, NEED_FULL[name])
    assert e.value.exit_code == 2
    assert "VariationalProblem" in str(e.value)
    assert "\n" not in str(e.value)
    run(DECLARED, NEED_FULL[name])


def _minimax(x: Tensor, y: Tensor, client: int, rng: np.random.Generator) -> Tensor:
    return (x * float(rng.random()) - y.square()).sum()


def _minimise(x: Tensor, client: int, rng: np.random.Generator) -> Tensor:
    return x.square().sum() * (1 + float(rng.random()))


@pytest.mark.parametrize(
    "problem",
    [
        fedsys.MinimaxProblem(_minimax, torch.ones(2), torch.ones(2)),
        fedsys.MinimisationProblem(_minimise, torch.ones(2)),
    ],
    ids=["minimax", "minimisation"],
)
def test_noisy_losses_are_refused_too(problem: Any) -> None:
    with pytest.raises(InputError, match=type(problem).__name__):
        run(problem, SVRG)


def test_algorithms_with_sampled_gradients_need_no_full_operators() -> None:
    run(NOISY, FedNest(lr_x=0.1, lr_y=0.1, local_steps=2, gradients="sample"))
    run(NOISY, CDMA(lr_x=0.1, lr_y=0.1, local_steps=2, gradients="sample"))


def test_a_function_that_ignores_its_generator_is_exact_without_a_declaration() -> None:
    problem = fedsys.VariationalProblem(lambda z, client, rng: z - client, START)
    assert run(problem, SVRG, steps=400)["operator_norm"] < 1e-12


def test_a_function_that_becomes_noisy_later_is_refused_when_its_mean_is_needed() -> None:
    def late(z: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        far = bool((z - START).norm() > 0.1)
        return z + (torch.from_numpy(rng.standard_normal(DIM)) if far else 0.0)

    with pytest.raises(InputError, match="draws random numbers"):
        run(fedsys.VariationalProblem(late, START), FedGDAGT(lr=0.1, local_steps=2), steps=9)


def test_a_metric_of_one_random_draw_is_labelled_as_sampled() -> None:
    record = run(NOISY, LocalSGDA(lr_x=0.1, lr_y=0.1))
    assert "sampled_operator_norm" in record
    assert "operator_norm" not in record
    plain = fedsys.MinimisationProblem(_minimise, torch.ones(2))
    names = plain.oracle(site()).evaluate(torch.ones(CLIENTS, 2).double(), unmetered())
    assert set(names) == {"sampled_train_loss"}


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(()), lambda: torch.tensor(np.random.rand())],
    ids=["torch", "numpy"],
)
def test_numbers_from_a_global_generator_are_noise_too(draw: Callable[[], Tensor]) -> None:
    problem = fedsys.VariationalProblem(lambda z, client, sample: z + draw(), START, samples=2)

    def full() -> Tensor:
        oracle = problem.oracle(site())
        return oracle.full_operator(oracle.z0)

    with pytest.raises(InputError, match="draws random numbers"):
        full()


def test_the_loss_of_a_declared_sum_is_its_mean_over_all_samples() -> None:
    def loss(x: Tensor, client: int, sample: int) -> Tensor:
        return (x - client - sample).square().sum()

    problem = fedsys.MinimisationProblem(loss, torch.zeros(1), samples=3)
    oracle = problem.oracle(site(2))
    # Client 0 has 0, 1, 2 and client 1 has 1, 2, 3: the means of the squares are 5/3 and 14/3.
    loss_of = oracle.evaluate(oracle.z0, unmetered(2))
    assert loss_of == {"train_loss": pytest.approx((5 / 3 + 14 / 3) / 2, abs=1e-15)}
    assert oracle.full_operator(oracle.z0).flatten().tolist() == [-2, -4]


def test_a_compositional_loss_of_declared_sums_is_exact() -> None:
    problem = fedsys.CompositionalProblem(
        inner=lambda x, client, sample: x + sample,
        outer=lambda h, y, client, sample: (h * (1 + sample) - y).sum(),
        x=torch.tensor([1.0]),
        y=torch.tensor([2.0]),
        samples=3,
    )
    oracle = problem.oracle(site(2))
    # g = 1 + mean(0, 1, 2) = 2 and f = 2 mean(1, 2, 3) - 2 = 2.
    assert oracle.evaluate(oracle.z0, unmetered(2)) == {"train_loss": pytest.approx(2, abs=1e-15)}
    value, pull = oracle.inner(oracle.x0, oracle.at(3).draw())
    picks = [int(generator(7, "function", c, 3, 0).integers(3, size=1)[0]) for c in range(2)]
    assert value.flatten().tolist() == [1.0 + pick for pick in picks]
    assert pull(torch.full((2, 1), 3.0).double()).flatten().tolist() == [3, 3]


def test_a_bilevel_loss_of_declared_sums_is_exact_and_otherwise_labelled() -> None:
    x, y = torch.tensor([1.0]), torch.tensor([2.0])

    def inner(x: Tensor, y: Tensor, client: int, sample: int) -> Tensor:
        return (y - sample).square().sum()

    def outer(x: Tensor, y: Tensor, client: int, sample: int) -> Tensor:
        return ((y - sample).square() + x).sum()

    problem = fedsys.problems.BilevelProblem(outer, inner, x, y, samples=5, outer_samples=3)
    oracle = problem.oracle(site(2))
    # f: (4 + 1 + 0) / 3 + 1; the gradient of g is 2 (y - 2) = 0; y(x) = 2 does not depend on x.
    assert oracle.evaluate(oracle.z0, unmetered(2)) == {
        "train_loss": pytest.approx(8 / 3, abs=1e-15),
        "outer_loss": pytest.approx(8 / 3, abs=1e-15),
        "inner_residual": pytest.approx(0, abs=1e-15),
        "hypergradient_norm": pytest.approx(1, abs=1e-15),
    }

    def noisy(x: Tensor, y: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        return (y * float(rng.random())).sum()

    problem = fedsys.problems.BilevelProblem(noisy, noisy, x, y)
    names = set(problem.oracle(site(2)).evaluate(oracle.z0, unmetered(2)))
    assert {"sampled_train_loss", "sampled_outer_loss"} <= names
    assert all(name.startswith("sampled_") for name in names)


@pytest.mark.parametrize("samples", [0, -1, 2.5, True, "many", lambda client: 0])
def test_samples_must_be_a_positive_integer(samples: Any) -> None:
    problem = fedsys.VariationalProblem(of_sample, START, samples=samples)
    with pytest.raises(InputError, match=r"^VariationalProblem: samples.* a positive integer, got"):
        problem.oracle(site())


OPERATOR_CASES = {
    name: case.algorithm
    for name, case in CASES.items()
    if case.algorithm.kind in ("variational", "minimax")
    and type(case.algorithm).__module__.startswith("fedsys.")
    and not case.algorithm.needs_samples  # refused for a problem without samples
}


@pytest.mark.parametrize("name", OPERATOR_CASES)
def test_an_algorithm_declares_full_operators_exactly_if_it_uses_them(name: str) -> None:
    algorithm = OPERATOR_CASES[name]
    drive = Drive(Case(algorithm, NOISY), LocalTransport(), clients=CLIENTS)
    if algorithm.needs_full_operator:
        with pytest.raises(InputError, match="draws random numbers"):
            list(drive.states(20))
    else:
        assert len(list(drive.states(20))) == 21
