"""The step size of a Neumann series, from the largest eigenvalue of the inner Hessians.

The series sum_q (I - lr H)^q lr converges to H^-1 for lr < 2 / L, where L is the largest eigenvalue
of H = grad_yy g; Proposition 1 of Li, Huang and Huang (2022), arXiv:2205.01608, needs lr < 1 / L. L
is measured by power iteration at the starting point and, with its x, at y = 0, where the curvature
of a logistic loss is largest; it is no bound for other points. Where a draw is a random sample, the
Hessians of several draws are measured: the theory needs L of every sample, the mean series that of
the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import torch
from torch import Tensor

from fedsys.core.cancellation import cancellable
from fedsys.core.errors import InputError
from fedsys.core.oracles import Bilevel, Draw
from fedsys.core.sync import Sync

_DRAWS = 8
_ITERATIONS = 100
_TOLERANCE = 1e-3
_SHARE = 0.9
"""The measured step is this share of 1 / L: a power iteration approaches L from below."""

Product = Callable[[Tensor], Tensor]


def neumann_step(owner: str, option: str, lr: float | None, oracle: Bilevel, sync: Sync) -> float:
    """Return a step size of the Neumann series: below 1 / L, or `lr` if it is given.

    A given step is refused from 2 / L on, where the series diverges. Between 1 / L and 2 / L it
    causes a warning.

    Args:
        owner: the algorithm, for messages.
        option: the name of the option, for messages.
        lr: the step that is given, or None.
        oracle: the inner Hessians, at its starting point.
        sync: shares the eigenvalues of all clients.
    """
    of_mean, of_draws = largest_eigenvalues(oracle, sync)
    if lr is None:
        if not (isfinite(of_draws) and of_draws > 0):
            raise InputError(
                f"{owner}: {option} cannot be measured, because the largest eigenvalue of "
                f"grad_yy g at the starting point is {of_draws:.3g}; give {option} a number, or "
                "an inner function that is strongly convex in y"
            )
        return _SHARE / of_draws
    found = f"the largest eigenvalue of grad_yy g is about {of_mean:.3g}"
    if lr * of_mean >= 2:
        raise InputError(
            f"{owner}: {option}={lr:g} is too large: {found}, so the Neumann series diverges; "
            f"give less than {1 / of_mean:.3g}, or null to measure it"
        )
    if lr * of_mean >= 1:
        _warn(oracle, f"{owner}: {option}={lr:g} is above the theorem's 1 / L: {found}")
    return lr


def largest_eigenvalues(oracle: Bilevel, sync: Sync) -> tuple[float, float]:
    """Return the largest |eigenvalue| over the clients: of mean Hessians, and of single draws."""
    draws = [oracle.draw() for _ in range(_DRAWS if oracle.finite_sum else 1)]
    points = [oracle.y0, torch.zeros_like(oracle.y0)]
    found = torch.stack([_at(oracle, y, draws) for y in points]).amax(0)
    mean, single = sync.gather(found).amax(0).tolist()
    return mean, single


def _at(oracle: Bilevel, y: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Return the eigenvalues [C, 2] of the hosted clients: of the mean, and of single draws."""
    products = [oracle.curvature(oracle.x0, y, xi).hessian_product for xi in draws]
    of_mean = power_iteration(lambda v: _mean(products, v), y)
    singles = [power_iteration(product, y) for product in products] if products[1:] else [of_mean]
    return torch.stack([of_mean, torch.stack(singles).amax(0)], dim=1)


def power_iteration(product: Product, like: Tensor) -> Tensor:
    """Return the largest |eigenvalue| of each client's symmetric matrix, [C], from its products."""
    # A fixed start without symmetry; it does not depend on the placement of the clients.
    v = torch.sin(torch.arange(1, like.shape[1] + 1, dtype=like.dtype, device=like.device))
    v = (v / v.norm()).expand_as(like)
    before = like.new_zeros(len(like))
    for _ in cancellable(range(_ITERATIONS)):
        Hv = product(v)
        found: Tensor = Hv.norm(dim=1)
        v = Hv / found.clamp_min(torch.finfo(like.dtype).tiny)[:, None]
        if not bool(((found - before).abs() > _TOLERANCE * found).any()):
            break
        before = found
    return found


def _mean(products: Sequence[Product], v: Tensor) -> Tensor:
    total = products[0](v)
    for product in products[1:]:
        total = total + product(v)
    return total / len(products)


def _warn(oracle: Bilevel, line: str) -> None:
    warnings: dict[str, str] = getattr(oracle, "warnings", {})
    warnings["option neumann step"] = line
