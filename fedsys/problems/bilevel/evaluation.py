"""Metrics of bilevel problems: hypergradient and inner residual, on all data of the clients.

The hypergradient is that of Junyi Li, Feihu Huang, Heng Huang. Local Stochastic Bilevel
Optimization with Momentum-Based Variance Reduction. 2022. arXiv:2205.01608, eq. (3), at each
client's own y_m, with the inverse applied by conjugate gradients. For a lower level that all
clients share, the means over the clients take the place of the derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import torch
from torch import Tensor

from fedsys.core.oracles import Bilevel, Draw
from fedsys.core.sync import Sync
from fedsys.problems.bilevel.hypergradient import conjugate_gradients

_TOLERANCE = 1e-8
_MAX_ITERATIONS = 200


def stationarity(
    oracle: Bilevel,
    x: Tensor,
    y: Tensor,
    draws: tuple[Draw, Draw],
    sync: Sync,
    shared: bool = False,
) -> dict[str, float]:
    """Return hypergradient_norm and inner_residual at x [C, dx] and y [C, dy].

    hypergradient_norm is the norm of the mean of the clients' hypergradients; with a term or
    constraint on x, that of x - prox(x - hypergradient). It is left out where a Hessian of g has no
    positive curvature along a direction of the solver, because y(x) is then not defined.
    inner_residual is the mean of |grad_y g_m(x, y_m)|, or the norm of the mean of
    grad_y g_m(x, y) if all clients share y.

    Args:
        oracle: the derivatives of f and g.
        x: the outer variable.
        y: the inner variable.
        draws: the samples of f and of g to evaluate on; all of them, for exact values.
        sync: averages over the clients.
        shared: whether the clients share the lower level.
    """
    found = _of_shared if shared else _of_own
    gradient, residual = found(oracle, x, y, draws, sync)
    norm = float(gradient[0].norm())
    if not isfinite(norm):
        return {"inner_residual": residual}
    ahead = x - gradient
    mapped = oracle.prox_x(ahead, 1.0)
    if mapped is not ahead:
        norm = float((x - mapped)[0].norm())
    return {"hypergradient_norm": norm, "inner_residual": residual}


def _of_own(
    oracle: Bilevel, x: Tensor, y: Tensor, draws: tuple[Draw, Draw], sync: Sync
) -> tuple[Tensor, float]:
    outer, inner = draws
    gx, gy = oracle.outer_grads(x, y, outer)
    curvature = oracle.curvature(x, y, inner)
    v = _solve(curvature.hessian_product, gy)
    residual = oracle.inner_grad(x, y, inner).norm(dim=1, keepdim=True)
    phi, residual = sync(gx - curvature.cross_product(v), residual)
    return phi, float(residual[0])


def _of_shared(
    oracle: Bilevel, x: Tensor, y: Tensor, draws: tuple[Draw, Draw], sync: Sync
) -> tuple[Tensor, float]:
    outer, inner = draws
    gx, gy, residual = sync(*oracle.outer_grads(x, y, outer), oracle.inner_grad(x, y, inner))
    curvature = oracle.curvature(x, y, inner)
    v = _solve(lambda p: sync(curvature.hessian_product(p)), gy)
    return gx - sync(curvature.cross_product(v)), float(residual[0].norm())


def _solve(product: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
    """Return H_m^-1 b_m by conjugate gradients, or NaN where H_m is not positive definite."""
    indefinite = torch.zeros(len(b), 1, dtype=torch.bool, device=b.device)

    def watched(p: Tensor) -> Tensor:
        nonlocal indefinite
        Hp = product(p)
        indefinite = indefinite | (((p * Hp).sum(1) <= 0) & p.any(1))[:, None]
        return Hp

    tolerance = max(_TOLERANCE, 10 * torch.finfo(b.dtype).eps)
    v = conjugate_gradients(watched, b, tolerance, min(_MAX_ITERATIONS, 10 * b.shape[1]))
    return torch.where(indefinite, torch.nan, v)
