"""The hypergradient: the gradient of f(x, y(x)), where y(x) minimises g(x, .).

Junyi Li, Feihu Huang, Heng Huang. Local Stochastic Bilevel Optimization with Momentum-Based
Variance Reduction. 2022. arXiv:2205.01608, eq. (3) and (4).

Axes: C hosted clients, d inner variables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedsys.core.cancellation import cancellable
from fedsys.core.errors import require
from fedsys.core.fields import Checked
from fedsys.core.oracles import Bilevel, Draw
from fedsys.core.sync import Sync
from fedsys.problems.bilevel.spectrum import neumann_step


class HyperDraw(NamedTuple):
    """The samples of one hypergradient: of f, of the mixed derivatives, and of each Hessian."""

    outer: Draw
    cross: Draw
    hessians: tuple[Draw, ...] = ()


class Hypergradient(Protocol):
    """Phi(x, y) = grad_x f - grad_xy g [grad_yy g]^-1 grad_y f.

    Li et al. (2022), arXiv:2205.01608, eq. (3).
    """

    def draw(self, oracle: Bilevel) -> HyperDraw:
        """Return the samples that one evaluation needs."""

    def __call__(self, oracle: Bilevel, x: Tensor, y: Tensor, xi: HyperDraw) -> Tensor:
        """Return Phi_m(x_m, y_m; xi_m): [C, dx]."""


@dataclass(frozen=True)
class ExactHypergradient(Checked):
    """Phi with a solve by the Hessian of one draw; that of all data if a draw is a full batch.

    Li et al. (2022), arXiv:2205.01608, eq. (3).

    Args:
        solver: "dense" forms the Hessian, column by column; "cg" uses conjugate gradients.
        tolerance: the tolerance of the residual of "cg", relative to grad_y f.
        max_iterations: the largest number of iterations of "cg".
    """

    solver: str = "cg"
    tolerance: float = 1e-10
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = "hypergradient"
        require(self.solver in ("dense", "cg"), owner, "solver", self.solver, "dense or cg")
        require(self.tolerance > 0, owner, "tolerance", self.tolerance, "positive")
        valid = self.max_iterations >= 1
        require(valid, owner, "max_iterations", self.max_iterations, "at least 1")

    def draw(self, oracle: Bilevel) -> HyperDraw:
        """Draw a sample of f and one of g."""
        return HyperDraw(oracle.outer_draw(), oracle.draw())

    def __call__(self, oracle: Bilevel, x: Tensor, y: Tensor, xi: HyperDraw) -> Tensor:
        """Return Phi, by one solve."""
        gx, gy = oracle.outer_grads(x, y, xi.outer)
        curvature = oracle.curvature(x, y, xi.cross)
        if self.solver == "dense":
            v = dense_solve(curvature.hessian_product, gy)
        else:
            product = curvature.hessian_product
            v = conjugate_gradients(product, gy, self.tolerance, self.max_iterations)
        return gx - curvature.cross_product(v)


@dataclass(frozen=True)
class NeumannHypergradient(Checked):
    """Phi by a truncated Neumann series on independent draws.

        Phi = grad_x f - lr grad_xy g sum_{q=-1}^{Q-1} prod_{j=Q-q}^{Q} (I - lr H_j) grad_y f

    Li et al. (2022), arXiv:2205.01608, eq. (4). The sum has Q + 1 terms, of which that of q = -1 is
    the empty product, so an evaluation takes Q Hessian-vector products.

    Args:
        terms: Q.
        lr: the eta of the series, below 1 / L; the paper also calls the outer step size eta. None:
            measure L by power iteration before the first step (`fedsys.problems.bilevel.spectrum`).
    """

    terms: int = 10
    lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.terms >= 0, "hypergradient", "terms", self.terms, "at least 0")
        valid = self.lr is None or self.lr > 0
        require(valid, "hypergradient", "lr", self.lr, "positive, or null to measure it")

    def measured(self, owner: str, oracle: Bilevel, sync: Sync) -> NeumannHypergradient:
        """Return the series with a measured lr, or check the one that is given."""
        if self.terms == 0 and self.lr is not None:
            return self
        return replace(self, lr=neumann_step(owner, "hypergradient.lr", self.lr, oracle, sync))

    def draw(self, oracle: Bilevel) -> HyperDraw:
        """Draw B_f, B_g and B_1, ..., B_Q."""
        hessians = tuple(oracle.draw() for _ in range(self.terms))
        return HyperDraw(oracle.outer_draw(), oracle.draw(), hessians)

    def __call__(self, oracle: Bilevel, x: Tensor, y: Tensor, xi: HyperDraw) -> Tensor:
        """Return Phi; the product of index q applies B_Q first and B_{Q-q} last."""
        assert self.lr is not None, "the runner calls FedBiO.measured before the first step"
        gx, term = oracle.outer_grads(x, y, xi.outer)
        total = term
        for sample in reversed(xi.hessians):
            term = term - self.lr * oracle.curvature(x, y, sample).hessian_product(term)
            total = total + term
        return gx - self.lr * oracle.curvature(x, y, xi.cross).cross_product(total)


def dense_solve(product: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
    """Return H_m^-1 b_m from products with H_m, one for each unit vector."""
    unit = torch.eye(b.shape[1], dtype=b.dtype, device=b.device)
    columns = [product(row.expand_as(b)) for row in cancellable(unit)]
    solution: Tensor = torch.linalg.solve(torch.stack(columns, dim=2), b)
    return solution


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], b: Tensor, tolerance: float, max_iterations: int
) -> Tensor:
    """Return H_m^-1 b_m for all hosted clients at once; a client that has converged is frozen."""
    v, r = torch.zeros_like(b), b
    p, rr = r, _squares(r)
    goal = tolerance**2 * rr
    for _ in cancellable(range(max_iterations)):
        active = rr > goal
        if not bool(active.any()):
            break
        Hp = product(p)
        step = torch.where(active, rr / (p * Hp).sum(1, keepdim=True), 0.0)
        v, r = v + step * p, r - step * Hp
        rr, before = torch.where(active, _squares(r), rr), rr
        p = torch.where(active, r + rr / before * p, p)
    return v


def _squares(rows: Tensor) -> Tensor:
    return rows.square().sum(1, keepdim=True)
