"""Problems of one's own: a function per client is enough.

Each function gets the variables of one client, the client's number and a random generator of this
draw (numpy's; a deterministic problem ignores it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsys.communication import Sync
from fedsys.problems.games import OperatorOracle
from fedsys.problems.oracle import Draw, Pullback
from fedsys.problems.site import Site
from fedsys.problems.stepping import SteppingOracle
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
            gx, gy = _gradients(self.loss, z.split([split, len(z) - split]), client, rng)
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


@dataclass(frozen=True)
class CompositionalProblem:
    """min over x, max over y of mean_m f_m(mean_m g_m(x), y).

    Args:
        inner: inner(x, client, rng) -> g_m(x), a vector, differentiable by autograd.
        outer: outer(h, y, client, rng) -> f_m(h, y), differentiable by autograd.
        x: where the min player starts [dx].
        y: where the max player starts [dy].
        metrics: of the mean point z = (x, y) [dx + dy].
    """

    inner: Callable[[Tensor, int, np.random.Generator], Tensor]
    outer: Callable[[Tensor, Tensor, int, np.random.Generator], Tensor]
    x: Tensor
    y: Tensor
    metrics: Metrics | None = None

    def oracle(self, site: Site) -> CompositionalFunctionOracle:
        """The oracle of the clients hosted at a site."""
        return CompositionalFunctionOracle(self, site)


class _FunctionOracle(SteppingOracle):
    """Draws of (step, k), turned into generators when a function is called."""

    _metrics: Metrics | None = None

    def draw(self) -> Draw:
        """(step, k)."""
        return self._next()

    def _each(self, function: Callable[..., Tensor], z: Tensor, xi: Draw) -> Tensor:
        """The function of each hosted client at its row of z."""
        rows = (row.detach() for row in z)
        return torch.stack([function(*args) for args in self._arguments(rows, xi)])

    def _arguments(
        self, rows: Iterable[Tensor], xi: Draw
    ) -> Iterator[tuple[Tensor, int, np.random.Generator]]:
        """What a function gets: a row, its client, and the generator of this draw."""
        step, k = xi
        for row, client in zip(rows, self.site.hosted, strict=True):
            yield row, client, generator(self.site.seed, "function", client, step, k)

    def _own_metrics(self, z: Tensor) -> dict[str, float]:
        return self._metrics(z[0]) if self._metrics else {}


def _gradients(
    loss: Callable[..., Tensor],
    variables: tuple[Tensor, ...],
    client: int,
    rng: np.random.Generator,
) -> tuple[Tensor, ...]:
    """The gradients of one client's loss in its variables."""
    leaves = [variable.detach().requires_grad_() for variable in variables]
    with torch.enable_grad():
        return torch.autograd.grad(loss(*leaves, client, rng), leaves)


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
        (gradient,) = _gradients(self._loss, (x,), client, rng)
        return gradient


class CompositionalFunctionOracle(_FunctionOracle):
    """Jacobians of the inner and gradients of the outer function by autograd."""

    def __init__(self, problem: CompositionalProblem, site: Site) -> None:
        super().__init__(site)
        self._inner, self._outer, self._metrics = problem.inner, problem.outer, problem.metrics
        self.x0, self.y0 = site.rows(problem.x), site.rows(problem.y)
        self.z0 = torch.cat([self.x0, self.y0], dim=1)
        self._sizes = [problem.x.numel(), problem.y.numel()]

    def inner(self, x: Tensor, xi: Draw) -> tuple[Tensor, Pullback]:
        """g_m(x_m; xi_m), and the product with its transposed Jacobian."""
        rows = [row.detach().requires_grad_() for row in x]
        with torch.enable_grad():
            values = [self._inner(*args) for args in self._arguments(rows, xi)]

        def pullback(v: Tensor) -> Tensor:
            triples = zip(values, rows, v, strict=True)
            return torch.stack(
                [torch.autograd.grad(g, row, w, retain_graph=True)[0] for g, row, w in triples]
            )

        return torch.stack([value.detach() for value in values]), pullback

    def outer_grads(self, h: Tensor, y: Tensor, zeta: Draw) -> tuple[Tensor, Tensor]:
        """The gradients of f_m(h_m, y_m; zeta_m)."""
        sizes = [h.shape[1], y.shape[1]]

        def gradients(row: Tensor, client: int, rng: np.random.Generator) -> Tensor:
            return torch.cat(_gradients(self._outer, row.split(sizes), client, rng))

        gh, gy = self._each(gradients, torch.cat([h, y], dim=1), zeta).split(sizes, dim=1)
        return gh, gy

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """The two players."""
        x, y = z.split(self._sizes)
        return {"x": x, "y": y}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """train_loss, the clients' mean of f_m(g(x), y), and the problem's own metrics."""
        x, y = z.split(self._sizes, dim=1)
        h = sync(self._each(self._inner, x, (self.step, 0)))

        def outer(row: Tensor, client: int, rng: np.random.Generator) -> Tensor:
            return self._outer(row[: h.shape[1]], row[h.shape[1] :], client, rng)

        losses = self._each(outer, torch.cat([h, y], dim=1), (self.step, 0))
        return {"train_loss": float(sync(losses[:, None])[0]), **self._own_metrics(z)}
