"""Composite terms: each map is the minimiser that its docstring states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsys.core.errors import InputError
from fedsys.problems.terms import L1, L2, NONE, Ball, Box, Simplex, Term

TERMS = [NONE, L1(0.7), L1(0.0), L2(1.3), Box(-0.5, 2.0), Ball(1.5), Simplex(), Simplex(True)]
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.floats(1e-3, 1e3)


def points(seed: int, size: float, rows: int = 3, dim: int = 4) -> Tensor:
    stream = np.random.default_rng(seed)
    return size * torch.from_numpy(stream.standard_normal((rows, dim)))


def others(term: Term, u: Tensor, seed: int) -> Tensor:
    """Points of the term's domain, near and far: [40, C, n]."""
    stream = np.random.default_rng(seed + 1)
    sizes = np.logspace(-4, 1, 40)[:, None, None]
    near = u + torch.from_numpy(sizes * stream.standard_normal((40, *u.shape)))
    return inside(term, near)


def inside(term: Term, w: Tensor) -> Tensor:
    """Points of the domain, computed without the map under test."""
    if isinstance(term, Box):
        return w.clamp(term.low, term.high)
    if isinstance(term, Ball):
        return term.radius * w / w.norm(dim=-1, keepdim=True).clamp(min=term.radius)
    if isinstance(term, Simplex):
        positive = w.abs() + 1e-12
        return positive / positive.sum(-1, keepdim=True)
    return w


def values(term: Term, w: Tensor) -> Tensor:
    return term.value(w.reshape(-1, w.shape[-1])).reshape(w.shape[:-1])


@pytest.mark.parametrize("term", TERMS, ids=str)
@given(seed=SEEDS, size=SIZES, step=st.floats(1e-2, 1e2))
@settings(max_examples=25, deadline=None)
def test_prox_is_better_than_every_other_point_by_strong_convexity(
    term: Term, seed: int, size: float, step: float
) -> None:
    v = points(seed, size)
    u = term.prox(v, step)

    def objective(w: Tensor) -> Tensor:
        return values(term, w) + (w - v).square().sum(-1) / (2 * step)

    w = others(term, u, seed)
    slack = objective(w) - objective(u) - (w - u).square().sum(-1) / (2 * step)
    scale = objective(w).abs() + objective(u).abs() + 1
    assert (slack / scale).min() > -1e-10
    assert torch.allclose(inside(term, u), u, atol=1e-9)


@pytest.mark.parametrize("term", TERMS, ids=str)
@given(seed=SEEDS, size=st.floats(1e-3, 30), weight=st.floats(1e-2, 1e1))
@settings(max_examples=25, deadline=None)
def test_mirror_maximises_the_conjugates_objective(
    term: Term, seed: int, size: float, weight: float
) -> None:
    v = points(seed, size)
    u = term.mirror(v, weight)

    def objective(w: Tensor) -> Tensor:
        entropic = isinstance(term, Simplex) and term.entropic
        h = w.xlogy(w).sum(-1) if entropic else w.square().sum(-1) / 2
        return (v * w).sum(-1) - h - weight * values(term, w)

    w = others(term, u, seed)
    slack = objective(u) - objective(w) - (w - u).square().sum(-1) / 2
    assert (slack / (objective(w).abs() + objective(u).abs() + 1)).min() > -1e-10


def test_the_soft_threshold_matches_values_computed_by_hand() -> None:
    v = torch.tensor([[3.0, -0.2, -1.0]])
    assert L1(0.5).prox(v, 2.0).tolist() == [[2.0, 0.0, 0.0]]
    assert L1(0.5).value(v).tolist() == pytest.approx([2.1])


def test_projections_onto_the_simplex_match_values_computed_by_hand() -> None:
    v = torch.tensor([[0.5, 0.5, 0.5], [2.0, 0.0, -1.0], [0.6, 0.4, -9.0]], dtype=torch.float64)
    expected = torch.tensor([[1 / 3] * 3, [1, 0, 0], [0.6, 0.4, 0]], dtype=torch.float64)
    torch.testing.assert_close(Simplex().prox(v, 1.0), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_simplex_accepts_huge_values_and_propagates_nan(dtype: torch.dtype) -> None:
    huge = torch.tensor([[1e30, 0.0], [-1e30, -1e30]], dtype=dtype)
    assert Simplex().prox(huge, 1.0).tolist() == [[1.0, 0.0], [0.5, 0.5]]
    broken = torch.tensor([[float("nan"), 0.0]], dtype=dtype)
    assert Simplex().prox(broken, 1.0).isnan().any()


def test_without_a_term_the_maps_return_their_argument() -> None:
    v = points(0, 1.0)
    assert NONE.prox(v, 3.0) is v
    assert NONE.mirror(v, 3.0) is v
    assert not NONE.value(v).any()


def test_an_invalid_term_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"l1: weight must be at least 0, got -1"):
        L1(-1)
    with pytest.raises(InputError, match=r"l2: weight must be at least 0, got -1"):
        L2(-1)
    with pytest.raises(InputError, match=r"box: low must be below high=1, got 2"):
        Box(2, 1)
    with pytest.raises(InputError, match=r"ball: radius must be positive, got 0"):
        Ball(0)
