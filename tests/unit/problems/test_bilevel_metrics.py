"""Metrics of bilevel problems, at each client's own inner variable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.cases import FAIR, FAIR_NET, SEED
from torch import Tensor

import fedsys
from fedsys.algorithms import FedBiO
from fedsys.core.metrics import metric
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.problems import (
    BilevelProblem,
    ExactHypergradient,
    NeumannHypergradient,
    QuadraticBilevel,
)

SITE = Site(Placement(3), seed=SEED, dtype=torch.float64, kind="bilevel")
QUADRATIC = QuadraticBilevel(dim=4, samples=3, conditioning=0.3)
EXACT = ExactHypergradient("dense")
SHORT: dict[str, Any] = {"clients": 3, "seed": SEED, "dtype": "float64"}


def from_functions(problem: QuadraticBilevel) -> BilevelProblem:
    """The same problem as functions of a client."""
    A, B, b, c, e = problem.oracle(SITE).draw()

    def outer(x: Tensor, y: Tensor, m: int, rng: object) -> Tensor:
        return ((y - c[m]).square().sum() + 0.1 * (x - e[m]).square().sum()) / 2

    def inner(x: Tensor, y: Tensor, m: int, rng: object) -> Tensor:
        return y @ A[m] @ y / 2 - y @ (B[m] @ x + b[m])

    ones = torch.ones(4, dtype=torch.float64)
    return BilevelProblem(outer, inner, ones, ones)


@pytest.mark.parametrize("name", ["outer_loss", "hypergradient_norm", "inner_residual"])
def test_lower_values_of_the_metrics_are_better(name: str) -> None:
    assert metric(name).meaning
    assert metric(name).lower_is_better


def test_outer_loss_is_the_value_at_each_clients_own_y_and_that_of_h_once_solved() -> None:
    solver = FedBiO(lr=0.15, inner_lr=0.9, hypergradient=EXACT, local_steps=1)
    result = fedsys.run(QUADRATIC, solver, steps=900, **SHORT)
    first, last = result.records[0], result.records[-1]
    assert abs(first["outer_loss"] - first["train_loss"]) > 0.1
    assert last["outer_loss"] - last["train_loss"] == pytest.approx(0, abs=1e-12)
    assert last["inner_residual"] < 1e-12
    assert last["hypergradient_norm"] < 1e-12
    assert result.variables["y"].shape == (3, 4)
    oracle = QUADRATIC.oracle(SITE)
    x = result.variables["x"].expand(3, -1)
    torch.testing.assert_close(result.variables["y"], oracle.inner_solution(x))


def test_metrics_of_functions_are_those_of_the_closed_forms_at_the_same_point() -> None:
    method = FedBiO(lr=0.1, inner_lr=0.5, hypergradient=NeumannHypergradient(5, 0.5), local_steps=2)
    result = fedsys.run(from_functions(QUADRATIC), method, steps=8, **SHORT)
    closed = fedsys.run(QUADRATIC, method, steps=8, **SHORT)
    x, y = result.variables["x"].expand(3, -1), result.variables["y"]
    torch.testing.assert_close(y, closed.variables["y"])
    oracle = QUADRATIC.oracle(SITE)
    last, same = result.records[-1], closed.records[-1]
    assert last["outer_loss"] == pytest.approx(same["outer_loss"], rel=1e-12)
    assert last["inner_residual"] == pytest.approx(same["inner_residual"], rel=1e-12)
    mean = oracle.hypergradient(x, y).mean(0)
    assert last["hypergradient_norm"] == pytest.approx(float(mean.norm()), rel=1e-7)
    assert last["train_loss"] == last["outer_loss"]


def test_a_noisy_function_gives_metrics_that_say_so() -> None:
    def noisy(x: Tensor, y: Tensor, m: int, rng: np.random.Generator) -> Tensor:
        return ((y - x) ** 2).sum() / 2 + y.sum() * rng.standard_normal()

    def plain(x: Tensor, y: Tensor, m: int, rng: object) -> Tensor:
        return ((y - m) ** 2).sum() / 2

    for outer, inner in ((plain, noisy), (noisy, plain)):
        problem = BilevelProblem(outer, inner, torch.zeros(2), torch.zeros(2))
        record = fedsys.run(problem, FedBiO(hypergradient=EXACT), rounds=1, **SHORT).records[-1]
        names = {name for name in record if "outer" in name or "inner" in name or "hyper" in name}
        assert names == {
            f"sampled_{name}" for name in ("outer_loss", "inner_residual", "hypergradient_norm")
        }


def test_a_lower_level_without_positive_curvature_has_no_hypergradient() -> None:
    def outer(x: Tensor, y: Tensor, m: int, rng: object) -> Tensor:
        return (y - m).square().sum()

    def saddle(x: Tensor, y: Tensor, m: int, rng: object) -> Tensor:
        return (y[0] - x[0]) ** 2 - (y[1] - x[1]) ** 2

    problem = BilevelProblem(outer, saddle, torch.ones(2), torch.zeros(2))
    method = FedBiO(inner_lr=0.01, hypergradient=NeumannHypergradient(2, 0.1))
    record = fedsys.run(problem, method, rounds=1, **SHORT).records[-1]
    assert "hypergradient_norm" not in record
    assert record["inner_residual"] > 1


def test_weights_of_groups_report_stationarity_for_linear_models_only() -> None:
    method = FedBiO(lr=0.1, inner_lr=0.3, hypergradient=NeumannHypergradient(2, 0.3), local_steps=2)
    linear = fedsys.run(FAIR, method, rounds=3, **SHORT)
    network = fedsys.run(FAIR_NET, method, rounds=3, **SHORT)
    assert linear.records[-1]["inner_residual"] < linear.records[0]["inner_residual"]
    assert linear.records[-1]["hypergradient_norm"] > 0
    assert "hypergradient_norm" not in network.records[-1]
    assert network.records[-1]["outer_loss"] > 0
