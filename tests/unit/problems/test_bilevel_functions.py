"""Bilevel problems from a user's functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.cases import SEED
from torch import Tensor, nn

import fedsys
from fedsys.algorithms import FedBiO, FedNestBilevel
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.problems import BilevelProblem, ExactHypergradient, SharedQuadraticBilevel
from fedsys.problems.terms import L1, L2, Ball, Box, NuclearNorm, Simplex

SITE = Site(Placement(3), seed=SEED, dtype=torch.float64, kind="bilevel")
SHORT: dict[str, Any] = {"clients": 3, "seed": SEED, "dtype": "float64"}
SOLVER = FedBiO(lr=0.3, inner_lr=0.5, hypergradient=ExactHypergradient(), local_steps=1)
RNG = np.random.default_rng(0)
TARGETS = torch.from_numpy(RNG.standard_normal((3, 4)))
SHIFTS = torch.from_numpy(RNG.standard_normal((3, 6, 4)))


def away(x: Tensor, y: Tensor, shift: Tensor) -> Tensor:
    """|y - x - s|^2 / 2: y_m(x) = x + s_m."""
    return (y - x - shift).square().sum() / 2


def near(x: Tensor, y: Tensor, target: Tensor) -> Tensor:
    return y.square().sum() / 2


class TestAFunction:
    def test_of_tensors_of_any_shape_gets_the_clients_data(self) -> None:
        def inner(x: dict[str, Tensor], y: Tensor, data: Tensor) -> Tensor:
            assert x["scale"].shape == ()
            assert y.shape == (2, 2)
            return (y - data.view(2, 2) - x["shift"]).square().sum() / 2 + 0 * x["scale"]

        def outer(x: dict[str, Tensor], y: Tensor, data: Tensor) -> Tensor:
            return y.square().sum() / 2 + (x["scale"] - 2).square() / 2

        start = {"scale": torch.zeros(()), "shift": torch.zeros(2, 2)}
        data = list(TARGETS)
        problem = BilevelProblem(outer, inner, start, torch.zeros(2, 2), client_data=data)
        result = fedsys.run(problem, SOLVER, steps=120, **SHORT)
        shift = -TARGETS.mean(0).view(2, 2)
        torch.testing.assert_close(result.variables["x"]["shift"], shift, rtol=0, atol=1e-9)
        assert float(result.variables["x"]["scale"]) == pytest.approx(2)
        assert result.variables["y"].shape == (3, 2, 2)
        torch.testing.assert_close(result.variables["y"][1], TARGETS[1].view(2, 2) + shift)
        assert result.warnings == []  # clients are mapped together

    def test_of_a_module_gets_it_with_each_clients_parameters(self) -> None:
        inputs = torch.from_numpy(RNG.standard_normal((3, 20, 2)))

        def inner(x: Tensor, net: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
            points, labels = data
            errors = (net(points)[:, 0] - labels).square().mean()
            return errors + x.exp().sum() * sum(p.square().sum() for p in net.parameters())

        def outer(x: Tensor, net: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
            return (net(data[0])[:, 0] - data[1]).square().mean() + 0 * x.sum()

        data = [(points, points @ torch.tensor([1.0, -1.0]).double()) for points in inputs]
        problem = BilevelProblem(outer, inner, torch.zeros(1), nn.Linear(2, 1), client_data=data)
        result = fedsys.run(problem, FedBiO(lr=1.0, inner_lr=0.2), rounds=40, **SHORT)
        assert result.variables["y"]["weight"].shape == (3, 1, 2)
        assert float(result.variables["x"]) < -1  # exact labels need no regularisation
        assert result.records[-1]["outer_loss"] < result.records[0]["outer_loss"] / 4

    def test_of_samples_has_means_of_its_own_number_of_samples(self) -> None:
        def inner(x: Tensor, y: Tensor, m: int, sample: int) -> Tensor:
            return away(x, y, SHIFTS[m, sample])

        def outer(x: Tensor, y: Tensor, m: int, sample: int) -> Tensor:
            return (y - sample).square().sum() / 2

        for size in (2, None):
            problem = BilevelProblem(
                *(outer, inner, torch.zeros(4), torch.zeros(4)),
                samples=6,
                outer_samples=3,
                batch_size=size,
            )
            oracle = problem.oracle(SITE)
            assert oracle.finite_sum == (size is not None)
            y = oracle.y0 + 1
            draw, outer_draw = oracle.draw(), oracle.outer_draw()
            if size is None:
                full = oracle.inner_grad(oracle.x0, y, draw)
                torch.testing.assert_close(full, y - SHIFTS.mean(1))
                _, gy = oracle.outer_grads(oracle.x0, y, outer_draw)
                torch.testing.assert_close(gy, y - 1)  # the mean of 0, 1 and 2
            curvature = oracle.curvature(oracle.x0, y, draw)
            torch.testing.assert_close(curvature.hessian_product(y), y)
            torch.testing.assert_close(curvature.cross_product(y), -y)
            record = fedsys.run(problem, SOLVER, rounds=1, **SHORT).records[0]
            assert record["outer_loss"] == pytest.approx(4 * (0 + 1 + 4) / 6)

    def test_with_a_mistake_is_refused_in_one_line_that_names_it(self) -> None:
        def wrong(x: Tensor, y: Tensor, data: int) -> Tensor:
            return y - x

        problem = BilevelProblem(near, wrong, torch.zeros(2), torch.zeros(2))
        with pytest.raises(InputError, match=r"^BilevelProblem: inner\(x, y, ...\) returned") as no:
            fedsys.run(problem, SOLVER, rounds=1, **SHORT)
        assert len(str(no.value).splitlines()) == 1

    def test_that_is_linear_in_y_has_second_derivatives_of_zero(self) -> None:
        def linear(x: Tensor, y: Tensor, data: int) -> Tensor:
            return y.sum()

        oracle = BilevelProblem(near, linear, torch.zeros(2), torch.ones(2)).oracle(SITE)
        curvature = oracle.curvature(oracle.x0, oracle.y0, oracle.draw())
        assert not curvature.hessian_product(oracle.y0).any()
        assert not curvature.cross_product(oracle.y0).any()


def test_a_compositional_inner_function_has_the_mean_of_all_samples_as_a_full_batch() -> None:
    def inner(x: Tensor, m: int, sample: int) -> Tensor:
        return x * sample

    def outer(h: Tensor, y: Tensor, m: int, sample: int) -> Tensor:
        return (h * y).sum()

    problem = fedsys.CompositionalProblem(
        inner, outer, torch.ones(2), torch.ones(2), samples=6, batch_size=None
    )
    oracle = problem.oracle(SITE)
    values, pull = oracle.inner(oracle.x0, oracle.draw())
    torch.testing.assert_close(values, torch.full((3, 2), 2.5).double())
    torch.testing.assert_close(pull(values), 2.5 * values)


def _shrunk(v: np.ndarray) -> np.ndarray:
    U, s, Vh = np.linalg.svd(v.reshape(2, 2))
    return ((U * np.maximum(s - 0.2, 0)) @ Vh).ravel()


def _on_simplex(v: np.ndarray) -> np.ndarray:
    low, high = v.min() - 1, v.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


TERMS: dict[str, tuple[Any, Any]] = {
    "l1": (L1(0.2), lambda v: np.sign(v) * np.maximum(np.abs(v) - 0.2, 0)),
    "l2": (L2(0.5), lambda v: v / 1.5),
    "box": (Box(-0.1, 0.3), lambda v: v.clip(-0.1, 0.3)),
    "ball": (Ball(0.4), lambda v: v * min(1.0, 0.4 / np.linalg.norm(v))),
    "simplex": (Simplex(), _on_simplex),
    "nuclear norm": (NuclearNorm(0.2), _shrunk),
}


class TestATermOfTheOuterVariable:
    @pytest.mark.parametrize("level", ["own", "shared"])
    @pytest.mark.parametrize("name", TERMS)
    def test_is_solved_as_by_hand(self, name: str, level: str) -> None:
        """y = x + s, so x minimises |x + mean(s)|^2 / 2 plus the term: prox(-mean(s))."""
        term, prox = TERMS[name]
        shape = (2, 2) if name == "nuclear norm" else (4,)
        start = torch.zeros(shape, dtype=torch.float64)
        # FedBiO averages proximal points, which is exact where the clients agree.
        targets = TARGETS if level == "shared" else TARGETS.mean(0).expand(3, 4)
        data = [2 * target.reshape(shape) for target in targets]
        problem = BilevelProblem(
            near, away, start, start, client_data=data, lower_level=level, terms={"x": term}
        )
        shared = FedNestBilevel(lr=0.3, inner_lr=0.9, inner_rounds=5, neumann_lr=1.0, local_steps=1)
        solver = SOLVER if level == "own" else shared
        result = fedsys.run(problem, solver, steps=120, evaluate_every=120, **SHORT)
        expected = prox(-2 * TARGETS.mean(0).numpy())
        assert not np.allclose(expected, -2 * TARGETS.mean(0).numpy(), atol=0.02)
        x = result.variables["x"].flatten().numpy()
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-7)
        assert result.records[-1]["hypergradient_norm"] < 1e-6

    @pytest.mark.parametrize("terms", [L1(0.1), {"y": L1(0.1)}, {"x": L1(0.1), "y": L1(0.1)}])
    def test_is_the_only_one(self, terms: Any) -> None:
        problem = BilevelProblem(near, near, torch.zeros(2), torch.zeros(2), terms=terms)
        with pytest.raises(InputError, match=r'^BilevelProblem: terms must be {"x": term}, as'):
            fedsys.run(problem, SOLVER, rounds=1, **SHORT)


class TestALowerLevel:
    def test_that_is_shared_has_the_solution_of_the_closed_form(self) -> None:
        exact = SharedQuadraticBilevel(dim=4, samples=3, conditioning=0.4, mu=0.5)
        A, B, b, c, e = exact.oracle(SITE).draw()

        def inner(x: Tensor, y: Tensor, data: tuple[Tensor, ...]) -> Tensor:
            A, B, b, _, _ = data
            return y @ A @ y / 2 - y @ (B @ x + b)

        def outer(x: Tensor, y: Tensor, data: tuple[Tensor, ...]) -> Tensor:
            _, _, _, c, e = data
            return ((y - c).square().sum() + 0.5 * (x - e).square().sum()) / 2

        data = [(A[m], B[m], b[m], c[m], e[m]) for m in range(3)]
        ones = torch.ones(4, dtype=torch.float64)
        problem = BilevelProblem(outer, inner, ones, ones, client_data=data, lower_level="shared")
        solver = FedNestBilevel(lr=0.08, inner_lr=0.3, terms=10, neumann_lr=0.8, local_steps=2)
        own = fedsys.run(problem, solver, steps=30, **SHORT)
        closed = fedsys.run(exact, solver, steps=30, **SHORT)
        torch.testing.assert_close(own.variables["x"], closed.variables["x"])
        for name in ("outer_loss", "inner_residual"):
            assert own.records[-1][name] == pytest.approx(closed.records[-1][name], rel=1e-9)
        assert own.variables["y"].shape == (4,)

    def test_decides_which_algorithms_apply(self) -> None:
        own = BilevelProblem(near, near, torch.zeros(2), torch.zeros(2))
        shared = BilevelProblem(near, near, torch.zeros(2), torch.zeros(2), lower_level="shared")
        with pytest.raises(InputError, match="FedNestBilevel needs a shared_bilevel problem"):
            fedsys.run(own, FedNestBilevel(), rounds=1, **SHORT)
        with pytest.raises(InputError, match="FedBiO needs a bilevel problem"):
            fedsys.run(shared, FedBiO(), rounds=1, **SHORT)

    def test_of_another_name_is_refused(self) -> None:
        problem = BilevelProblem(near, near, torch.zeros(2), torch.zeros(2), lower_level="common")
        with pytest.raises(InputError, match="lower_level must be own or shared, got 'common'"):
            fedsys.run(problem, FedBiO(), rounds=1, **SHORT)
