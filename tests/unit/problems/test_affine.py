"""The gap and the co-coercivity constants of affine operators, compared with brute force."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsys.problems.games.affine_constants import (
    affine_gap,
    cocoercivity,
    generalised_largest,
    spectral_cocoercivity,
)

SEEDS = st.integers(0, 2**32 - 1)
DIMS = st.integers(2, 4)


def monotone(seed: int, dim: int, rank: int) -> tuple[np.random.Generator, Tensor]:
    """A random stream, and a matrix whose symmetric part is positive semidefinite of this rank."""
    stream = np.random.default_rng(seed)
    root = stream.standard_normal((dim, rank))
    K = stream.standard_normal((dim, dim))
    return stream, torch.from_numpy(root @ root.T + K - K.T)


def ascent(M: Tensor, b: Tensor, x: Tensor, centre: Tensor, D: float) -> float:
    """The supremum of the concave function by accelerated projected gradient ascent."""
    symmetric, slope, u = (M + M.T).numpy(), (M.T @ x - b).numpy(), np.zeros(len(x))
    step, ahead = 1 / (np.linalg.eigvalsh(symmetric)[-1] + 1), u
    for k in range(3000):
        v = ahead + step * (slope - symmetric @ (centre.numpy() + ahead))
        v = v * min(1.0, D / np.linalg.norm(v))
        u, ahead = v, v + k / (k + 3) * (v - u)
    return value(M, b, x, centre + torch.from_numpy(u))


def value(M: Tensor, b: Tensor, x: Tensor, u: Tensor) -> float:
    return float((M @ u + b) @ (x - u))


@given(seed=SEEDS, dim=DIMS, data=st.data(), D=st.floats(0.1, 10))
@settings(max_examples=25, deadline=None)
def test_the_gap_matches_ascent_and_bounds_all_points_of_the_ball(
    seed: int, dim: int, data: st.DataObject, D: float
) -> None:
    rank = data.draw(st.integers(0, dim), label="rank of the symmetric part")
    stream, M = monotone(seed, dim, rank)
    b, x, centre = (torch.from_numpy(stream.standard_normal(dim)) for _ in range(3))
    gap = affine_gap(M, b, x, centre, D)
    found = ascent(M, b, x, centre, D)
    # A ball without a solution may have a negative supremum, which counts as 0.
    assert max(0.0, found) == pytest.approx(gap, rel=1e-3, abs=1e-6)
    for direction in stream.standard_normal((200, dim)):
        length = D * stream.uniform() ** (1 / dim) / np.linalg.norm(direction)
        assert value(M, b, x, centre + length * torch.from_numpy(direction)) <= gap + 1e-9 * (
            1 + abs(gap)
        )


@given(seed=SEEDS, dim=DIMS, D=st.floats(1e-3, 1e3))
@settings(max_examples=25, deadline=None)
def test_the_gap_of_a_skew_operator_is_linear_in_the_radius(seed: int, dim: int, D: float) -> None:
    stream, K = monotone(seed, dim, 0)
    b, x = (torch.from_numpy(stream.standard_normal(dim)) for _ in range(2))
    expected = float(b @ x) + D * float((K.T @ x - b).norm())
    gap = affine_gap(K, b, x, torch.zeros_like(x), D)
    assert gap == pytest.approx(max(0.0, expected), rel=1e-9, abs=1e-9)


def test_the_gap_matches_a_value_computed_by_hand() -> None:
    one = torch.ones(1, dtype=torch.float64)
    # <u, 1 - u> is largest at u = 1/2, inside the ball of radius 1 but not of radius 1/4.
    assert affine_gap(one[:, None], 0 * one, one, 0 * one, 1.0) == pytest.approx(1 / 4)
    assert affine_gap(one[:, None], 0 * one, one, 0 * one, 1 / 4) == pytest.approx(3 / 16)


def test_the_gap_vanishes_at_a_solution_in_the_ball() -> None:
    stream, M = monotone(0, 4, 2)
    z, centre = (torch.from_numpy(stream.standard_normal(4)) for _ in range(2))
    gap = affine_gap(M, -M @ z, z, centre, float((z - centre).norm()))
    assert gap == pytest.approx(0, abs=1e-12)


@given(seed=SEEDS, dim=DIMS)
@settings(max_examples=50, deadline=None)
def test_cocoercivity_holds_for_all_vectors_and_for_no_smaller_constant(
    seed: int, dim: int
) -> None:
    stream, J = monotone(seed, dim, dim)
    ell = cocoercivity(J)
    u = torch.from_numpy(stream.standard_normal((500, dim))) @ torch.linalg.inv(J).T
    ratios = (u @ J.T).square().sum(1) / ((u @ J.T) * u).sum(1)
    assert ratios.max() <= ell * (1 + 1e-6)
    # 1/ell is also the smallest eigenvalue of sym(J^-1).
    inverse = torch.linalg.inv(J)
    smallest = torch.linalg.eigvalsh((inverse + inverse.T) / 2)[0]
    assert ell == pytest.approx(float(1 / smallest), rel=1e-6)


@given(seed=SEEDS, dim=DIMS)
@settings(max_examples=50, deadline=None)
def test_the_spectral_constant_is_at_most_the_exact_one(seed: int, dim: int) -> None:
    _, J = monotone(seed, dim, dim)
    assert spectral_cocoercivity(J[None]) <= cocoercivity(J) * (1 + 1e-9)


def test_both_constants_agree_for_a_normal_matrix() -> None:
    J = torch.tensor([[1.0, 2.0], [-2.0, 1.0]], dtype=torch.float64)  # eigenvalues 1 +- 2i
    assert spectral_cocoercivity(J[None]) == pytest.approx(5)
    assert cocoercivity(J) == pytest.approx(5)


def test_the_spectral_constant_of_several_matrices_is_the_largest() -> None:
    J = torch.stack([torch.eye(2), 3 * torch.eye(2)]).double()
    assert spectral_cocoercivity(J) == pytest.approx(3)


@given(seed=SEEDS, dim=DIMS)
@settings(max_examples=25, deadline=None)
def test_constants_ignore_variables_that_a_client_does_not_have(seed: int, dim: int) -> None:
    stream, J = monotone(seed, dim, dim)
    wide = torch.zeros(dim + 3, dim + 3, dtype=torch.float64)
    wide[2 : dim + 2, 2 : dim + 2] = J
    Q = torch.from_numpy(np.linalg.qr(stream.standard_normal(wide.shape))[0])
    for singular in (wide, Q @ wide @ Q.T):
        assert cocoercivity(singular) == pytest.approx(cocoercivity(J), rel=1e-6)
        expected = spectral_cocoercivity(J[None])
        assert spectral_cocoercivity(singular[None]) == pytest.approx(expected, rel=1e-6)


def test_a_skew_part_without_curvature_is_not_cocoercive() -> None:
    K = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    assert cocoercivity(K) == inf
    assert spectral_cocoercivity(K[None]) == inf
    assert cocoercivity(torch.block_diag(torch.eye(1), K)) == inf
    assert cocoercivity(-torch.eye(2)) == inf


def test_the_zero_operator_is_cocoercive_with_every_constant() -> None:
    zero = torch.zeros(2, 2, dtype=torch.float64)
    assert cocoercivity(zero) == 0
    assert spectral_cocoercivity(zero[None]) == 0


def test_a_generalised_eigenvalue_matches_a_value_computed_by_hand() -> None:
    A = torch.diag(torch.tensor([2.0, 3.0, 0.0]))
    S = torch.diag(torch.tensor([4.0, 1.0, 0.0]))
    assert generalised_largest(A, S) == pytest.approx(3)
    assert generalised_largest(A + sqrt(2) * torch.eye(3), S) == inf
