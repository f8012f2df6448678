"""Bilevel problems by autograd: the oracle of two losses f and g."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from fedsys.clients.flat_module import leaf
from fedsys.core.metrics import labelled
from fedsys.core.oracles import Curvature, Draw
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.bilevel.evaluation import stationarity
from fedsys.problems.stepping import SteppingOracle


class AutogradCurvature:
    """Products with the second derivatives of g, all from the graph of its gradient in y."""

    def __init__(self, x: Tensor, y: Tensor, gradient: Tensor) -> None:
        self._x, self._y, self._gradient = x, y, gradient

    def hessian_product(self, v: Tensor) -> Tensor:
        """Return grad_yy g_m v_m."""
        return self._product(self._y, v)

    def cross_product(self, v: Tensor) -> Tensor:
        """Return grad_xy g_m v_m."""
        return self._product(self._x, v)

    def _product(self, variable: Tensor, v: Tensor) -> Tensor:
        (product,) = torch.autograd.grad(
            self._gradient, variable, v, retain_graph=True, materialize_grads=True
        )
        return product


class BilevelOracle(SteppingOracle):
    """Derivatives of two losses by autograd; a subclass gives the losses of all hosted clients.

    Client m's loss depends only on row m, so row m of the gradient of the sum is the gradient of
    client m's loss.
    """

    def __init__(self, site: Site, x0: Tensor, y0: Tensor) -> None:
        super().__init__(site)
        self.z0 = site.rows(torch.cat([x0, y0]))
        self.x0, self.y0 = self.z0[:, : len(x0)], self.z0[:, len(x0) :]

    @abstractmethod
    def inner(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        """Return g_m(x_m, y_m; xi_m): [C]."""

    @abstractmethod
    def outer(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        """Return f_m(x_m, y_m; xi_m): [C]."""

    def inner_grad(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        """Return grad_y g_m."""
        with torch.enable_grad():
            y = leaf(y)
            (gradient,) = torch.autograd.grad(self.inner(x, y, xi).sum(), y)
        return gradient

    def outer_grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """Return grad_x f_m and grad_y f_m."""
        with torch.enable_grad():
            x, y = leaf(x), leaf(y)
            gx, gy = torch.autograd.grad(self.outer(x, y, xi).sum(), (x, y), materialize_grads=True)
        return gx, gy

    def curvature(self, x: Tensor, y: Tensor, xi: Draw) -> Curvature:
        """Return the second derivatives of g_m."""
        with torch.enable_grad():
            x, y = leaf(x), leaf(y)
            (gy,) = torch.autograd.grad(self.inner(x, y, xi).sum(), y, create_graph=True)
        return AutogradCurvature(x, y, gy)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """Return x [dx], and y [dy] or, of the points of all clients, [M, dy]."""
        x, y = z.split_with_sizes([self.x0.shape[1], self.y0.shape[1]], dim=-1)
        return {"x": shared_row(x), "y": y}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """Return outer_loss, the mean of f_m(x, y_m), and how far the point is from stationary.

        train_loss is outer_loss. hypergradient_norm and inner_residual are of
        `fedsys.problems.bilevel.evaluation`. Names have the prefix sampled_ if f or g draws random
        numbers, so that a value is that of one draw.
        """
        x, y = z.split_with_sizes([self.x0.shape[1], self.y0.shape[1]], dim=1)
        loss, noisy = sync(*self._full_outer(x, y))
        value = float(loss[0])
        found = stationarity(self, x, y, self._full_draws(), sync)
        metrics = {"train_loss": value, "outer_loss": value, **found}
        return {labelled(name, bool(noisy[0] > 0)): value for name, value in metrics.items()}

    @abstractmethod
    def _full_outer(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return f_m on all data of each hosted client, and [C, 1] whether f or g is random."""

    @abstractmethod
    def _full_draws(self) -> tuple[Draw, Draw]:
        """Return draws of f and of g that have all data of each hosted client."""

    def outer_draw(self) -> Draw:
        """Return the next sample of f."""
        return self.draw()

    @abstractmethod
    def draw(self) -> Draw:
        """Return the next sample of g."""


def shared_row(x: Tensor) -> Tensor:
    """Return a variable that all clients share, from a point [dx] or the points of all [M, dx]."""
    return x if x.dim() == 1 else x[0]
