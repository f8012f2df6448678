"""Bilevel problems: the hypergradients, the oracles, and runs of the algorithms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import FAIR, FAIR_NET, SEED
from torch import Tensor

import fedsys
from fedsys.algorithms import FedBiO, FedBiOAcc
from fedsys.clients.small_models import LinearModel, NetworkModel
from fedsys.core.errors import InputError, NonFiniteError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import Dataset, Digits, Scaling
from fedsys.models import MLP
from fedsys.problems import (
    BilevelProblem,
    ExactHypergradient,
    HyperCleaning,
    Hypergradient,
    NeumannHypergradient,
    QuadraticBilevel,
)
from fedsys.problems.bilevel.quadratic_bilevel import QuadraticBilevelOracle
from fedsys.problems.bilevel.reweighting import ReweightingOracle

SITE = Site(Placement(3), seed=SEED, dtype=torch.float64, kind="bilevel")
QUADRATIC = QuadraticBilevel(dim=6, samples=4, conditioning=0.3)
EXACT = [ExactHypergradient("dense"), ExactHypergradient("cg", tolerance=1e-13)]


def point(seed: int, oracle: Any) -> tuple[Tensor, Tensor]:
    """A different x and y for each client."""
    stream = np.random.default_rng(seed)
    x, y = (stream.standard_normal(rows.shape) for rows in (oracle.x0, oracle.y0))
    return torch.from_numpy(x), torch.from_numpy(y)


def phi(way: Hypergradient, oracle: Any, x: Tensor, y: Tensor) -> Tensor:
    fresh = oracle.at(3)
    return way(fresh, x, y, way.draw(fresh))


class TestTheHypergradient:
    @pytest.mark.parametrize("way", EXACT, ids=lambda way: way.solver)
    def test_with_a_solve_matches_the_closed_form_to_1e_10(self, way: ExactHypergradient) -> None:
        oracle = QUADRATIC.oracle(SITE)
        x, y = point(0, oracle)
        closed = oracle.hypergradient(x, y)
        torch.testing.assert_close(phi(way, oracle, x, y), closed, rtol=0, atol=1e-10)

    def test_at_the_inner_solution_is_the_gradient_of_the_outer_value(self) -> None:
        oracle = QUADRATIC.oracle(SITE)
        x, _ = point(1, oracle)
        step = 1e-5
        slopes = []
        for unit in torch.eye(6, dtype=torch.float64):
            ends = [x + sign * step * unit for sign in (1, -1)]
            values = [oracle.outer(end, oracle.inner_solution(end), oracle.draw()) for end in ends]
            slopes.append((values[0] - values[1]) / (2 * step))
        exact = oracle.hypergradient(x, oracle.inner_solution(x))
        torch.testing.assert_close(torch.stack(slopes, dim=1), exact, rtol=1e-7, atol=1e-7)

    def test_by_neumann_has_the_error_of_proposition_1_which_is_geometric_in_the_terms(
        self,
    ) -> None:
        oracle: QuadraticBilevelOracle = QUADRATIC.oracle(SITE)
        x, y = point(2, oracle)
        closed, (A, B, _, c, _) = oracle.hypergradient(x, y), oracle.draw()
        mu, lr = float(torch.linalg.eigvalsh(A).min()), 0.9
        M, L = float((y - c).norm(dim=1).max()), float(torch.linalg.matrix_norm(B, 2).max())
        errors = []
        for Q in (0, 5, 10, 20, 40):
            difference = phi(NeumannHypergradient(Q, lr), oracle, x, y) - closed
            errors.append(float(difference.norm(dim=1).max()))
            assert errors[-1] <= (1 - lr * mu) ** (Q + 1) * M * L / mu
        assert errors[-1] > 1e-13
        assert errors == sorted(errors, reverse=True)

    def test_by_neumann_on_independent_draws_has_the_product_of_means_as_its_mean(self) -> None:
        oracle = replace(QUADRATIC, batch_size=1, spread=0.5).oracle(SITE)
        whole = replace(QUADRATIC, batch_size=None, spread=0.5).oracle(SITE)
        x, y = point(3, oracle)
        way = NeumannHypergradient(2, 0.5)
        draws = [way(at, x, y, way.draw(at)) for at in map(oracle.at, range(1500))]
        mean, spread = torch.stack(draws).mean(0), torch.stack(draws).std(0)
        assert float(spread.min()) > 0.05
        assert float(((mean - phi(way, whole, x, y)).abs() / (spread / 1500**0.5)).max()) < 5

    def test_builds_one_graph_per_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        oracle = FAIR_NET.oracle(SITE)
        x, y = point(4, oracle)
        passes = []
        forward = NetworkModel.forward
        monkeypatch.setattr(
            NetworkModel, "forward", lambda *args: passes.append(1) or forward(*args)
        )
        phi(NeumannHypergradient(terms=7, lr=0.1), oracle, x, y)
        assert len(passes) == 7 + 2
        passes.clear()
        phi(ExactHypergradient("dense"), oracle, x, y)
        assert len(passes) == 2

    @pytest.mark.parametrize(
        "bad", [{"solver": "lu"}, {"tolerance": 0.0}, {"max_iterations": 0}], ids=str
    )
    def test_refuses_options_out_of_range(self, bad: dict[str, Any]) -> None:
        with pytest.raises(InputError, match=f"{next(iter(bad))} must be"):
            ExactHypergradient(**bad)
        with pytest.raises(InputError, match="terms must be at least 0, got -1"):
            NeumannHypergradient(terms=-1)


def test_user_functions_give_the_derivatives_of_the_quadratic_problem() -> None:
    oracle = QUADRATIC.oracle(SITE)
    A, B, b, c, e = oracle.draw()

    def outer(x: Tensor, y: Tensor, i: int, rng: object) -> Tensor:
        return ((y - c[i]).square().sum() + 0.1 * (x - e[i]).square().sum()) / 2

    def inner(x: Tensor, y: Tensor, i: int, rng: object) -> Tensor:
        return y @ A[i] @ y / 2 - y @ (B[i] @ x + b[i])

    own = BilevelProblem(outer, inner, torch.zeros(6), torch.zeros(6)).oracle(SITE)
    x, y = point(5, oracle)
    torch.testing.assert_close(
        own.inner_grad(x, y, own.draw()), oracle.inner_grad(x, y, oracle.draw())
    )
    for way in (*EXACT, NeumannHypergradient(4, 0.5)):
        torch.testing.assert_close(phi(way, own, x, y), phi(way, oracle, x, y), rtol=0, atol=1e-9)


LINEAR = MLP(hidden=[])
CLEANING = HyperCleaning(model=LINEAR, batch_size=5)


@pytest.mark.parametrize("problem", [FAIR, CLEANING], ids=["one output", "ten outputs"])
def test_the_closed_form_of_linear_models_matches_autograd(problem: Any) -> None:
    linear = problem.oracle(SITE)
    assert type(linear.model) is LinearModel
    assert not linear.uses_autograd
    x, y = point(6, linear)
    by_autograd = problem.oracle(SITE)
    by_autograd.model.__class__ = NetworkModel
    close = {"rtol": 1e-10, "atol": 1e-12}
    xi, zeta = linear.at(2).draw(), linear.at(2).outer_draw()
    torch.testing.assert_close(
        linear.inner_grad(x, y, xi), by_autograd.inner_grad(x, y, xi), **close
    )
    torch.testing.assert_close(
        linear.outer_grads(x, y, zeta), by_autograd.outer_grads(x, y, zeta), **close
    )
    ours, theirs = linear.curvature(x, y, xi), by_autograd.curvature(x, y, xi)
    _, v = point(7, linear)
    by_autograd.model.linear = False
    theirs = by_autograd.curvature(x, y, xi)
    assert type(ours._curvature) is not type(theirs._curvature)
    torch.testing.assert_close(ours.hessian_product(v), theirs.hessian_product(v), **close)
    torch.testing.assert_close(ours.cross_product(v), theirs.cross_product(v), **close)


def test_the_second_derivatives_of_a_network_match_differences_of_its_gradients() -> None:
    oracle: ReweightingOracle = FAIR_NET.oracle(SITE)
    (x, y), (w, v) = point(8, oracle), point(9, oracle)
    xi, h = oracle.draw(), 1e-6
    curvature = oracle.curvature(x, y, xi)
    ahead, behind = (oracle.inner_grad(x, y + s * h * v, xi) for s in (1, -1))
    torch.testing.assert_close(
        curvature.hessian_product(v), (ahead - behind) / (2 * h), rtol=1e-5, atol=1e-7
    )
    ahead, behind = (oracle.inner_grad(x + s * h * w, y, xi) for s in (1, -1))
    along = ((ahead - behind) / (2 * h) * v).sum(1)
    torch.testing.assert_close((curvature.cross_product(v) * w).sum(1), along, rtol=1e-5, atol=1e-7)


class TestFedBiO:
    def test_with_one_local_step_solves_a_heterogeneous_problem_with_a_y_for_each_client(
        self,
    ) -> None:
        algorithm = FedBiO(lr=0.15, inner_lr=0.9, hypergradient=EXACT[0], local_steps=1)
        result = fedsys.run(QUADRATIC, algorithm, steps=600, clients=4, dtype="float64")
        assert result.records[0]["hypergradient_norm"] > 1
        assert result.records[-1]["hypergradient_norm"] < 1e-10
        state = result.state.tensors()
        assert torch.equal(state["x"][0], state["x"][3])
        distances = torch.cdist(state["y"], state["y"]) + torch.eye(4)
        assert float(distances.min()) > 0.1

    def test_with_momentum_reaches_a_hypergradient_in_fewer_rounds_under_noise(self) -> None:
        noisy = QuadraticBilevel(
            dim=5, samples=20, batch_size=1, conditioning=0.5, spread=0.1, mu=0.5
        )
        neumann = NeumannHypergradient(8, 0.9)
        common: dict[str, Any] = {"hypergradient": neumann, "local_steps": 3}
        momentum = FedBiOAcc(lr=0.3, inner_lr=4, delta=1, u=8, **common)
        plain = [FedBiO(lr=lr, inner_lr=0.5, **common) for lr in (0.02, 0.05)]

        def rounds_to(norm: float, algorithm: Any) -> float:
            records = fedsys.run(
                noisy, algorithm, rounds=130, clients=4, evaluate_every=10, dtype="float64"
            ).records
            near = [r["round"] for r in records if r["hypergradient_norm"] <= norm]
            return min(near, default=float("inf"))

        assert rounds_to(0.15, momentum) < min(rounds_to(0.15, each) for each in plain)

    def test_fits_one_y_with_the_x_of_the_first_stage(self) -> None:
        first = FedBiO(lr=0.5, inner_lr=0.3, local_steps=2, fit_from=20, fit_lr=0.3)
        runs = [
            fedsys.run(FAIR, first, steps=steps, clients=3, dtype="float64").state.tensors()
            for steps in (20, 60)
        ]
        assert float((runs[0]["y"][0] - runs[0]["y"][1]).abs().max()) > 1e-3
        assert torch.equal(runs[0]["x"], runs[1]["x"])
        assert float(runs[1]["x"].abs().max()) > 1e-3
        assert torch.equal(runs[1]["y"][0], runs[1]["y"][1])

    def test_refuses_a_second_stage_that_starts_within_a_round(self) -> None:
        with pytest.raises(InputError, match="fit_from must be 0, or a multiple of local_steps=5"):
            FedBiO(local_steps=5, fit_from=12)


@dataclass(frozen=True)
class GivenData:
    """A source of a given data set."""

    data: Dataset

    def load(self) -> Dataset:
        return self.data


class TestHyperCleaning:
    def test_learns_which_labels_are_wrong(self) -> None:
        series = NeumannHypergradient(3, 0.5)
        algorithm = FedBiO(lr=200.0, inner_lr=1.0, hypergradient=series, local_steps=10)
        problem = HyperCleaning(model=LINEAR, noise=0.5)
        result = fedsys.run(problem, algorithm, rounds=60, clients=3, evaluate_every=60)
        assert result.records[0]["noise_auc"] == 0.5
        assert result.records[-1]["noise_auc"] > 0.85
        assert result.records[-1]["test_accuracy"] > 0.8

    def test_keeps_validation_labels_and_replaces_a_fraction_of_the_training_labels(self) -> None:
        problem = HyperCleaning(model=LINEAR, noise=0.25)
        truth = problem.dataset.load().train_labels.numpy()
        noisy = problem._noisy(truth, 10, seed=1)
        assert (noisy != truth).sum() == round(0.25 * len(truth))
        assert noisy.min() == 0
        assert noisy.max() == 9
        oracle = problem.oracle(SITE)
        tags = oracle.validation.whole.tags
        assert torch.equal(
            oracle.validation.whole.labels[:, :50], torch.from_numpy(truth)[tags][:, :50]
        )

    def test_scales_images_of_bytes_and_exposes_the_partition(self) -> None:
        pixels = torch.arange(60 * 4, dtype=torch.uint8).view(60, 1, 2, 2)
        labels = torch.arange(60) % 3
        scaling = Scaling(mean=(0.2,), std=(0.5,))
        images = Dataset(pixels, labels, pixels[:6], labels[:6], classes=3, scaling=scaling)
        oracle = HyperCleaning(GivenData(images), model=LINEAR, batch_size=None).oracle(SITE)
        held = oracle.validation.whole
        expected = (pixels[held.tags].double() / 255 - 0.2) / 0.5
        torch.testing.assert_close(held.inputs, expected)
        torch.testing.assert_close(oracle._test_inputs, (pixels[:6].double() / 255 - 0.2) / 0.5)
        assert [len(part) for part in oracle.client_split.parts] == [20, 20, 20]

    def test_refuses_clients_with_too_few_samples(self) -> None:
        many = replace(SITE, placement=Placement(1000))
        with pytest.raises(InputError, match="client 0 has 2 samples, too few to hold out 20%"):
            HyperCleaning().oracle(many)


def away(x: Tensor, y: Tensor, client: int, rng: np.random.Generator) -> Tensor:
    """|y - x - m|^2 / 2 of client m."""
    return (y - x - client).square().sum() / 2


def run(problem: Any, algorithm: Any) -> Any:
    """20 rounds with 4 clients and two evaluations."""
    return fedsys.run(problem, algorithm, rounds=20, clients=4, evaluate_every=20, dtype="float64")


class TestTheInnerVariableOfAClient:
    """y_m = x + m solves the inner problem of client m, and f_m is 0 there."""

    SOLVED = BilevelProblem(away, away, torch.ones(2), torch.ones(2))
    PLAIN = NeumannHypergradient(0, 1.0)
    METHODS = (
        FedBiO(inner_lr=0.5, hypergradient=PLAIN, local_steps=3),
        FedBiOAcc(inner_lr=20.0, hypergradient=PLAIN, local_steps=3),
    )

    @pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
    def test_is_the_point_at_which_the_outer_loss_is_evaluated(self, method: Any) -> None:
        result = run(self.SOLVED, method)
        assert result.records[-1]["train_loss"] < 1e-3  # 0.625 at the mean of the y_m

    def test_is_kept_for_every_client_and_does_not_count_as_drift(self) -> None:
        result = run(self.SOLVED, self.METHODS[0])
        x, y = result.variables["x"], result.variables["y"]
        assert x.shape == (2,)
        torch.testing.assert_close(y, x + torch.arange(4.0, dtype=x.dtype)[:, None])
        assert result.records[-1]["drift"] < 1e-20

    def test_that_is_not_finite_is_reported_with_its_client(self) -> None:
        def inner(x: Tensor, y: Tensor, client: int, rng: np.random.Generator) -> Tensor:
            loss = away(x, y, client, rng)  # finite at the start, which is checked before a run
            return loss / (y.norm() < 2) if client == 2 else loss

        problem = replace(self.SOLVED, inner=inner)
        way = FedBiO(hypergradient=NeumannHypergradient(0, 1e-300), local_steps=3)
        with pytest.raises(NonFiniteError, match="client 2"):
            fedsys.run(problem, way, steps=6, clients=4)

    def test_of_a_network_has_the_names_of_its_parameters(self) -> None:
        first = fedsys.run(FAIR_NET, FedBiO(local_steps=2), steps=6, clients=3)
        second = fedsys.run(FAIR_NET, FedBiO(local_steps=2, fit_from=4), steps=6, clients=3)
        assert first.variables["group_weights"].shape == second.variables["group_weights"].shape
        for name, one in second.variables.items():
            if name != "group_weights":
                assert first.variables[name].shape == (3, *one.shape)
                assert not torch.equal(*first.variables[name][:2])

    def test_gives_the_test_accuracy_of_each_clients_own_model(self) -> None:
        way = FedBiO(lr=1.0, inner_lr=1.0, local_steps=2)
        problem = HyperCleaning(model=MLP(hidden=[]))
        result = fedsys.run(problem, way, steps=8, clients=3, dtype="float64")
        data = Digits().load()
        inputs = data.numbers(data.test_inputs, torch.float64, torch.device("cpu")).flatten(1)
        weights, biases = (v for n, v in result.variables.items() if n != "sample_weights")
        scores = torch.einsum("bi,moi->mbo", inputs, weights) + biases[:, None]
        right = (scores.argmax(2) == data.test_labels).double().mean()
        assert result.records[-1]["test_accuracy"] == pytest.approx(float(right), abs=1e-12)
