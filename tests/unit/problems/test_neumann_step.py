"""The step size of a Neumann series: measured, given, or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.cases import FAIR, SEED

import fedsys
from fedsys.algorithms import Averaged, FedBiO, FedBiOAcc
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.problems import BilevelProblem, NeumannHypergradient, QuadraticBilevel
from fedsys.problems.bilevel.spectrum import largest_eigenvalues, power_iteration

SITE = Site(Placement(3), seed=SEED, dtype=torch.float64, kind="bilevel")
QUADRATIC = QuadraticBilevel(dim=6, samples=4, conditioning=0.3)
SHORT: dict[str, Any] = {"rounds": 2, "clients": 3, "seed": SEED, "dtype": "float64"}


def largest() -> float:
    """The largest eigenvalue over the clients, from the matrices themselves."""
    A = QUADRATIC.oracle(SITE).draw()[0]
    return float(torch.linalg.eigvalsh(A).max())


def series(lr: float | None, terms: int = 10) -> FedBiO:
    return FedBiO(lr=0.01, inner_lr=0.5, hypergradient=NeumannHypergradient(terms, lr))


def test_a_power_iteration_finds_the_largest_eigenvalue_of_each_client() -> None:
    A = torch.diag_embed(torch.tensor([[1.0, 3.0, 0.5], [-4.0, 2.0, 1.0]], dtype=torch.float64))
    found = power_iteration(lambda v: (A @ v[:, :, None])[:, :, 0], torch.zeros(2, 3).double())
    torch.testing.assert_close(found, torch.tensor([3.0, 4.0]).double(), rtol=5e-3, atol=0)


def test_the_default_step_is_just_below_one_over_the_largest_eigenvalue() -> None:
    result = fedsys.run(QUADRATIC, series(None), **SHORT)
    assert 0.85 / largest() < result.algorithm.hypergradient.lr < 1 / largest()
    assert result.warnings == []


def test_the_default_step_is_measured_for_both_algorithms_and_behind_a_wrapper() -> None:
    plain = fedsys.run(QUADRATIC, series(None), **SHORT).algorithm.hypergradient
    accelerated = fedsys.run(QUADRATIC, FedBiOAcc(), **SHORT).algorithm.hypergradient
    wrapped = fedsys.run(QUADRATIC, Averaged(series(None)), **SHORT).algorithm.algorithm
    assert plain == accelerated == wrapped.hypergradient


def test_single_samples_count_with_their_own_largest_eigenvalue() -> None:
    oracle = replace(QUADRATIC, batch_size=1, spread=1.0).oracle(SITE)
    communicator = AllReduce()
    communicator.open(LocalTransport(), SITE.placement, Every())
    of_mean, of_draws = largest_eigenvalues(oracle.initial(), communicator.unmetered())
    assert of_mean < 0.95
    assert of_draws == pytest.approx(1, rel=0.02)  # every sample has eigenvalues up to 1


def test_a_given_step_is_kept() -> None:
    result = fedsys.run(QUADRATIC, series(0.37), **SHORT)
    assert result.algorithm.hypergradient.lr == 0.37
    assert result.warnings == []


def test_a_step_at_which_the_series_diverges_is_refused_in_one_line() -> None:
    rule = (
        r"^FedBiO: hypergradient.lr=2.5 is too large: the largest eigenvalue of grad_yy g is about "
        r"0\.9\d+, so the Neumann series diverges; give less than 1\.\d+, or null to measure it$"
    )
    with pytest.raises(InputError, match=rule):
        fedsys.run(QUADRATIC, series(2.5), **SHORT)
    with pytest.raises(InputError, match=r"hypergradient.lr=50 is too large"):
        fedsys.run(FAIR, series(50.0), **SHORT)


def test_a_step_that_leaves_the_theorem_causes_a_warning() -> None:
    result = fedsys.run(QUADRATIC, series(1.5), **SHORT)
    (line,) = result.warnings
    assert "hypergradient.lr=1.5 is above the theorem's 1 / L" in line


def test_a_series_of_one_term_may_have_any_step() -> None:
    assert fedsys.run(QUADRATIC, series(50.0, terms=0), **SHORT).warnings == []


def test_a_lower_level_that_is_flat_cannot_be_measured() -> None:
    def flat(x: torch.Tensor, y: torch.Tensor, client: int, rng: object) -> torch.Tensor:
        return (x * y).sum()

    problem = BilevelProblem(flat, flat, torch.ones(2), torch.ones(2))
    with pytest.raises(InputError, match=r"hypergradient.lr cannot be measured"):
        fedsys.run(problem, series(None), **SHORT)
