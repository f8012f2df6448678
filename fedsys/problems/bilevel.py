"""Bilevel problems by autograd: the oracle of losses f and g, and problems of one's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsys.communication import Sync
from fedsys.problems.oracle import Curvature, Draw
from fedsys.problems.site import Site
from fedsys.problems.stepping import SteppingOracle
from fedsys.random import generator

ClientLoss = Callable[[Tensor, Tensor, int, np.random.Generator], Tensor]
"""loss(x, y, client, rng) of one client."""


class AutogradCurvature:
    """Products with the second derivatives of g, all from the graph of its gradient in y."""

    def __init__(self, x: Tensor, y: Tensor, gradient: Tensor) -> None:
        self._x, self._y, self._gradient = x, y, gradient

    def hessian_product(self, v: Tensor) -> Tensor:
        """grad_yy g_m v_m."""
        return self._product(self._y, v)

    def cross_product(self, v: Tensor) -> Tensor:
        """grad_xy g_m v_m."""
        return self._product(self._x, v)

    def _product(self, variable: Tensor, v: Tensor) -> Tensor:
        (product,) = torch.autograd.grad(
            self._gradient, variable, v, retain_graph=True, materialize_grads=True
        )
        return product


class BilevelOracle(SteppingOracle):
    """Derivatives of two losses by autograd; a subclass gives the losses of all hosted clients.

    Client m's loss depends on row m alone, so the gradient of the sum has every client's in its
    rows.
    """

    def __init__(self, site: Site, x0: Tensor, y0: Tensor) -> None:
        super().__init__(site)
        self.z0 = site.rows(torch.cat([x0, y0]))
        self.x0, self.y0 = self.z0[:, : len(x0)], self.z0[:, len(x0) :]

    @abstractmethod
    def inner(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        """g_m(x_m, y_m; xi_m): [C]."""

    @abstractmethod
    def outer(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        """f_m(x_m, y_m; xi_m): [C]."""

    def inner_grad(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        """grad_y g_m."""
        with torch.enable_grad():
            y = leaf(y)
            (gradient,) = torch.autograd.grad(self.inner(x, y, xi).sum(), y)
        return gradient

    def outer_grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """grad_x f_m and grad_y f_m."""
        with torch.enable_grad():
            x, y = leaf(x), leaf(y)
            gx, gy = torch.autograd.grad(self.outer(x, y, xi).sum(), (x, y), materialize_grads=True)
        return gx, gy

    def curvature(self, x: Tensor, y: Tensor, xi: Draw) -> Curvature:
        """The second derivatives of g_m."""
        with torch.enable_grad():
            x, y = leaf(x), leaf(y)
            (gy,) = torch.autograd.grad(self.inner(x, y, xi).sum(), y, create_graph=True)
        return AutogradCurvature(x, y, gy)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """The outer and the inner variable."""
        split = self.x0.shape[1]
        return {"x": z[:split], "y": z[split:]}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """train_loss, the mean of the clients' outer losses at the mean point."""
        x, y = z.split_with_sizes([self.x0.shape[1], self.y0.shape[1]], dim=1)
        losses = self.outer(x, y, self.at(self.step).outer_draw())
        return {"train_loss": float(sync(losses[:, None])[0])}

    def outer_draw(self) -> Draw:
        """The next sample of f."""
        return self.draw()

    @abstractmethod
    def draw(self) -> Draw:
        """The next sample of g."""


def leaf(rows: Tensor) -> Tensor:
    """A copy for autograd to differentiate in."""
    return rows.detach().clone().requires_grad_()


@dataclass(frozen=True)
class BilevelProblem:
    """min over x of mean_m f_m(x, y_m(x)), y_m(x) = argmin g_m(x, .).

    Args:
        outer: f of one client, outer(x, y, client, rng), differentiable by autograd.
        inner: g of one client, twice differentiable, strongly convex in y.
        x: where the shared variable starts [dx].
        y: where every client's own variable starts [dy].
    """

    outer: ClientLoss
    inner: ClientLoss
    x: Tensor
    y: Tensor

    kinds: ClassVar[tuple[str, ...]] = ("bilevel",)

    def oracle(self, site: Site) -> BilevelOracle:
        """The oracle of the clients hosted at a site."""
        return _FunctionOracle(self, site)


class _FunctionOracle(BilevelOracle):
    """Draws of (step, k), turned into generators when a function is called."""

    def __init__(self, problem: BilevelProblem, site: Site) -> None:
        super().__init__(site, problem.x, problem.y)
        self._problem = problem

    def draw(self) -> Draw:
        return self._next()

    def inner(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        return self._each(self._problem.inner, x, y, xi)

    def outer(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        return self._each(self._problem.outer, x, y, xi)

    def _each(self, loss: ClientLoss, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        step, k = xi
        losses = []
        for row, client in enumerate(self.site.hosted):
            rng = generator(self.site.seed, "function", client, step, k)
            losses.append(loss(x[row], y[row], client, rng))
        return torch.stack(losses)
