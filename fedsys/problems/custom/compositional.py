"""Compositional min-max problems from functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsys.core.oracles import Draw, Pullback
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.custom.function_oracle import FunctionOracle
from fedsys.problems.custom.function_problem import FunctionProblem
from fedsys.problems.custom.user_function import Scalar, Vector
from fedsys.problems.custom.variables import Variable


@dataclass(frozen=True)
class CompositionalProblem(FunctionProblem):
    """min over x, max over y of mean_m f_m(mean_m g_m(x), y).

    Args:
        inner: inner(x, data) -> g_m(x), a tensor of any shape, differentiated by autograd.
        outer: outer(h, y, data) -> f_m(h, y), differentiated by autograd; h is g as a vector.
        x: the starting point of the min player: a tensor, a list, a dictionary or a module.
        y: the starting point of the max player.

    The other options are those of `FunctionProblem`.
    """

    inner: Callable[..., Any]
    outer: Callable[..., Any]
    x: Any
    y: Any

    kinds: ClassVar[tuple[str, ...]] = ("compositional",)

    def oracle(self, site: Site) -> CompositionalFunctionOracle:
        """Return the oracle of the clients hosted at a site."""
        return CompositionalFunctionOracle(self, site)


class CompositionalFunctionOracle(FunctionOracle):
    """The Jacobian of the inner and the gradients of the outer function by autograd."""

    def __init__(self, problem: CompositionalProblem, site: Site) -> None:
        owner = type(problem).__name__
        x, y = Variable(owner, "x", problem.x), Variable(owner, "y", problem.y)
        super().__init__(problem, site, [x, y])
        self.x0, self.y0 = self.rows(self.z0)
        self._inner = self._function("inner", problem.inner, [x], Vector(), (self.x0,))
        (g0,), _ = self._inner.full((self.x0,), 0)
        h = Variable(owner, "h", g0[0])
        start = (g0, self.y0)
        self._outer = self._function("outer", problem.outer, [h, y], Scalar(), start)
        self._gradients = self._function("outer", problem.outer, [h, y], Scalar(), start, True)

    def inner(self, x: Tensor, xi: Draw) -> tuple[Tensor, Pullback]:
        """Return g_m(x_m; xi_m), and the product with its transposed Jacobian."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = x.clone().requires_grad_()
            values = self._inner.differentiable((leaf,), xi)

        def pullback(v: Tensor) -> Tensor:
            with torch.inference_mode(False):
                (found,) = torch.autograd.grad(values, leaf, v.clone(), retain_graph=True)
            return found

        return values.detach(), pullback

    def outer_grads(self, h: Tensor, y: Tensor, zeta: Draw) -> tuple[Tensor, Tensor]:
        """Return the gradients of f_m(h_m, y_m; zeta_m)."""
        gh, gy = self._gradients((h, y), zeta)
        return gh, gy

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """Return train_loss, the mean of f_m(g(x), y), and the problem's own metrics."""
        x, y = self.rows(z)
        (g,), noisy_inner = self._inner.full((x,), self.step)
        h, noise = sync(g, noisy_inner)
        (losses,), noisy_outer = self._outer.full((h, y), self.step)
        found = self._mean_loss(losses, torch.maximum(noise, noisy_outer), sync)
        return {**found, **self._own_metrics(z)}
