"""Problems of one's own: a function per client is enough.

Each function gets the variables of one client, the client's number and a random generator of this
draw (numpy's; a deterministic problem ignores it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsys.communication import Sync
from fedsys.problems.games import OperatorOracle
from fedsys.problems.oracle import Draw, Site, SteppingOracle
from fedsys.random import generator

Metrics = Callable[[Tensor], dict[str, float]]


@dataclass(frozen=True)
class OperatorProblem:
    """Find z with mean_m F_m(z) = 0, for operator(z, client, rng) -> F_m(z).

    Args:
        operator: of one client.
        start: z0 [d].
        split: how many of the d variables the min player owns; half of them by default.
        metrics: of the mean point z [d], reported beside the operator's norm.
    """

    operator: Callable[[Tensor, int, np.random.Generator], Tensor]
    start: Tensor
    split: int | None = None
    metrics: Metrics | None = None

    def oracle(self, site: Site) -> OperatorOracle:
        """The oracle of the clients hosted at a site."""
        return _OperatorFunctionOracle(self, site)


@dataclass(frozen=True)
class MinimaxProblem:
    """min over x, max over y of mean_m f_m(x, y), for loss(x, y, client, rng) -> f_m(x, y).

    Args:
        loss: of one client, differentiable by autograd.
        x: where the min player starts [dx].
        y: where the max player starts [dy].
        metrics: of the mean point z = (x, y) [dx + dy].
    """

    loss: Callable[[Tensor, Tensor, int, np.random.Generator], Tensor]
    x: Tensor
    y: Tensor
    metrics: Metrics | None = None

    def oracle(self, site: Site) -> OperatorOracle:
        """The oracle of the clients hosted at a site."""
        split = self.x.numel()

        def operator(z: Tensor, client: int, rng: np.random.Generator) -> Tensor:
            x, y = z[:split].requires_grad_(), z[split:].requires_grad_()
            with torch.enable_grad():
                gx, gy = torch.autograd.grad(self.loss(x, y, client, rng), (x, y))
            return torch.cat([gx, -gy])

        game = OperatorProblem(operator, torch.cat([self.x, self.y]), split, self.metrics)
        return game.oracle(site)


@dataclass(frozen=True)
class MinimisationProblem:
    """min over x of mean_m f_m(x), for loss(x, client, rng) -> f_m(x).

    Args:
        loss: of one client, differentiable by autograd.
        x: where to start [d].
        metrics: of the mean point x [d].
    """

    loss: Callable[[Tensor, int, np.random.Generator], Tensor]
    x: Tensor
    metrics: Metrics | None = None

    def oracle(self, site: Site) -> MinimisationFunctionOracle:
        """The oracle of the clients hosted at a site."""
        return MinimisationFunctionOracle(self, site)


class _FunctionOracle(SteppingOracle):
    """Draws of (step, k), turned into generators when a function is called."""

    _metrics: Metrics | None = None

    def draw(self) -> Draw:
        """(step, k)."""
        return self._next()

    def _each(self, function: Callable[..., Tensor], z: Tensor, xi: Draw) -> Tensor:
        """The function of each hosted client at its row of z."""
        step, k = xi
        rows = []
        for row, client in zip(z, self.site.hosted, strict=True):
            rng = generator(self.site.seed, "function", client, step, k)
            rows.append(function(row.detach(), client, rng))
        return torch.stack(rows)

    def _own_metrics(self, z: Tensor) -> dict[str, float]:
        return self._metrics(z[0]) if self._metrics else {}


class _OperatorFunctionOracle(_FunctionOracle, OperatorOracle):
    def __init__(self, problem: OperatorProblem, site: Site) -> None:
        split = problem.start.numel() // 2 if problem.split is None else problem.split
        OperatorOracle.__init__(self, site, problem.start, split)
        self._operator, self._metrics = problem.operator, problem.metrics

    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        return self._each(self._operator, z, xi)

    def full_operator(self, z: Tensor) -> Tensor:
        return self.operator(z, (self.step, 0))

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        return {**OperatorOracle.evaluate(self, z, sync), **self._own_metrics(z)}


class MinimisationFunctionOracle(_FunctionOracle):
    """Gradients of a loss function by autograd."""

    def __init__(self, problem: MinimisationProblem, site: Site) -> None:
        super().__init__(site)
        self._loss, self._metrics = problem.loss, problem.metrics
        self.z0 = self.x0 = site.rows(problem.x)

    def grad(self, x: Tensor, xi: Draw) -> Tensor:
        """The gradient of f_m(x_m; xi_m)."""
        return self._each(self._gradient, x, xi)

    operator = grad

    def full_operator(self, z: Tensor) -> Tensor:
        """The gradient with the first draw of the step."""
        return self.grad(z, (self.step, 0))

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """The one variable."""
        return {"x": z}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """train_loss, the mean of the clients' losses, and the problem's own metrics."""
        losses = self._each(self._loss, z, (self.step, 0))
        return {"train_loss": float(sync(losses[:, None])[0]), **self._own_metrics(z)}

    def _gradient(self, x: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        x = x.requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self._loss(x, client, rng), x)
        return gradient
