"""FEDNEST on a lower level that all clients share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import fedsys
from fedsys.algorithms import FedBiO, FedNestBilevel
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.problems import QuadraticBilevel, SharedQuadraticBilevel

PROBLEM = SharedQuadraticBilevel(dim=4, samples=3, conditioning=0.4, mu=0.5)
SOLVER = FedNestBilevel(lr=0.08, inner_lr=0.3, inner_rounds=3, terms=40, local_steps=2)
SHORT: dict[str, Any] = {"clients": 4, "dtype": "float64"}


@pytest.mark.parametrize("local_steps", [1, 3])
def test_reaches_the_exact_solution_of_a_heterogeneous_problem(local_steps: int) -> None:
    solver = replace(SOLVER, local_steps=local_steps)
    result = fedsys.run(PROBLEM, solver, steps=600, evaluate_every=600, **SHORT)
    last = result.records[-1]
    assert result.records[0]["relative_error"] == 1
    assert last["relative_error"] < 1e-16
    assert last["inner_residual"] < 1e-8
    assert last["hypergradient_norm"] < 1e-8
    assert last["outer_loss"] - last["train_loss"] == pytest.approx(0, abs=1e-8)
    assert result.variables["y"].shape == (4,)  # one y for all clients


def test_the_solution_of_a_shared_lower_level_is_not_that_of_separate_ones() -> None:
    shared = fedsys.run(PROBLEM, SOLVER, steps=300, evaluate_every=300, **SHORT)
    own = QuadraticBilevel(dim=4, samples=3, conditioning=0.4, mu=0.5)
    separate = fedsys.run(own, FedBiO(lr=0.1, inner_lr=0.9, local_steps=1), steps=300, **SHORT)
    assert float((shared.variables["x"] - separate.variables["x"]).norm()) > 0.01


def test_the_exact_solution_has_no_hypergradient() -> None:
    site = Site(Placement(4), seed=0, dtype=torch.float64, kind="shared_bilevel")
    oracle, communicator = PROBLEM.oracle(site), AllReduce()
    communicator.open(LocalTransport(), site.placement, Every())
    sync = communicator.unmetered()
    x, y = oracle.solution(sync)
    metrics = oracle.evaluate(torch.cat([x, y]).expand(4, -1), sync)
    assert metrics["hypergradient_norm"] < 1e-12
    assert metrics["inner_residual"] < 1e-12
    assert metrics["outer_loss"] - metrics["train_loss"] == pytest.approx(0, abs=1e-12)


def test_a_step_has_two_exchanges_per_inner_round_and_one_for_each_term() -> None:
    solver = replace(SOLVER, inner_rounds=2, terms=5)
    result = fedsys.run(PROBLEM, solver, steps=3, **SHORT)
    assert result.records[-1]["exchanges"] == 3 * (2 * 2 + 5 + 2)


def test_measures_the_step_of_the_series_and_refuses_one_at_which_it_diverges() -> None:
    measured = fedsys.run(PROBLEM, SOLVER, steps=1, **SHORT).algorithm.neumann_lr
    assert 0.85 < measured < 1.2
    with pytest.raises(InputError, match=r"^FedNestBilevel: neumann_lr=5 is too large: "):
        fedsys.run(PROBLEM, replace(SOLVER, neumann_lr=5.0), steps=1, **SHORT)


def test_refuses_a_part_of_the_clients_and_says_why() -> None:
    with pytest.raises(InputError, match="its inverse Hessian would be biased"):
        fedsys.run(PROBLEM, SOLVER, rounds=1, communicator=AllReduce(participation=0.5), **SHORT)


def test_each_lower_level_has_its_algorithms() -> None:
    with pytest.raises(InputError, match="FedNestBilevel needs a shared_bilevel problem"):
        fedsys.run(QuadraticBilevel(), SOLVER, rounds=1, **SHORT)
    with pytest.raises(InputError, match=r"; SharedQuadraticBilevel is shared_bilevel$"):
        fedsys.run(PROBLEM, FedBiO(), rounds=1, **SHORT)


@pytest.mark.parametrize("bad", [{"terms": 0}, {"inner_rounds": 0}, {"neumann_lr": -1.0}])
def test_refuses_options_out_of_range(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"FedNestBilevel: {next(iter(bad))} must be"):
        FedNestBilevel(**bad)
