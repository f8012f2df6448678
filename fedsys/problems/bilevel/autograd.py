"""Bilevel problems by autograd: the oracle of two losses f and g, and problems from functions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.clients.flat_module import leaf
from fedsys.core.oracles import Curvature, Draw
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.bilevel.evaluation import stationarity
from fedsys.problems.custom.client_functions import (
    ClientFunctions,
    FullDraw,
    Samples,
    labelled,
)
from fedsys.problems.stepping import SteppingOracle

ClientLoss = Callable[[Tensor, Tensor, int, Any], Tensor]
"""loss(x, y, client, rng) of one client, or loss(x, y, client, sample) of a finite sum."""


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


@dataclass(frozen=True)
class BilevelProblem:
    """min over x of mean_m f_m(x, y_m(x)), y_m(x) = argmin g_m(x, .).

    Args:
        outer: f of one client, outer(x, y, client, rng), differentiable by autograd.
        inner: g of one client, twice differentiable, strongly convex in y.
        x: the initial value of the shared variable [dx].
        y: the initial value of every client's own variable [dy].
        samples: the number of samples of each client, or a function of the client. Both functions
            then get a sample in place of rng, and f and g are means over all samples.
        outer_samples: the number of samples of f, if it differs; `samples` by default.
        batch_size: the number of samples per draw, with replacement; None for all of them.
    """

    outer: ClientLoss
    inner: ClientLoss
    x: Tensor
    y: Tensor
    samples: Samples = None
    outer_samples: Samples = None
    batch_size: int | None = 1

    kinds: ClassVar[tuple[str, ...]] = ("bilevel",)

    def oracle(self, site: Site) -> BilevelOracle:
        """Return the oracle of the clients hosted at a site."""
        return _FunctionOracle(self, site)


class _FunctionOracle(BilevelOracle):
    """A draw is (step, k); a function is called with its generator or with its samples."""

    def __init__(self, problem: BilevelProblem, site: Site) -> None:
        super().__init__(site, problem.x, problem.y)
        self._problem = problem
        owner, size = type(problem).__name__, problem.batch_size
        outer = problem.samples if problem.outer_samples is None else problem.outer_samples
        self._inner = ClientFunctions(owner, site, problem.samples, size)
        self._outer = ClientFunctions(owner, site, outer, size)
        self.sizes = self._inner.sizes(site.hosted)

    @property
    @override
    def finite_sum(self) -> bool:
        return self._inner.finite_sum

    @override
    def draw(self) -> Draw:
        return self._next()

    @override
    def inner(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        triples = zip(x, y, self.site.hosted, strict=True)
        mean, loss = self._inner.mean, self._problem.inner
        return torch.stack([mean(loss, (x_m, y_m), m, xi) for x_m, y_m, m in triples])

    @override
    def outer(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        triples = zip(x, y, self.site.hosted, strict=True)
        mean, loss = self._outer.mean, self._problem.outer
        return torch.stack([mean(loss, (x_m, y_m), m, xi) for x_m, y_m, m in triples])

    @override
    def _full_outer(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        values, noisy = self._full(self._outer, self._problem.outer, x, y)
        _, inner_noisy = self._full(self._inner, self._problem.inner, x, y)
        return values, torch.maximum(noisy, inner_noisy)

    def _full(
        self, functions: ClientFunctions, loss: ClientLoss, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        triples = zip(x, y, self.site.hosted, strict=True)
        values = [functions.full(loss, (x_m, y_m), m, self.step) for x_m, y_m, m in triples]
        noisy = x.new_tensor([[float(noisy)] for _, noisy in values])
        return torch.stack([value for value, _ in values])[:, None], noisy

    @override
    def _full_draws(self) -> tuple[Draw, Draw]:
        return FullDraw(self.step), FullDraw(self.step)
