"""Problems defined by a user's functions of a single client.

Each function gets the variables of one client, the client's index and the NumPy random generator of
the draw, which a deterministic function ignores. If `samples` declares a finite sum, it gets the
index of a sample in place of the generator, and full operators and metrics are exact means. The
mean of a function that uses its generator is unknown, and algorithms that need it raise an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.oracles import Draw, Pullback
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.custom.client_functions import Samples, labelled
from fedsys.problems.custom.function_oracle import (
    FunctionOracle,
    Metrics,
    OperatorFunction,
    gradients_of,
)
from fedsys.problems.games.operator_oracle import OperatorOracle


@dataclass(frozen=True)
class OperatorProblem:
    """Find z with mean_m F_m(z) = 0, for operator(z, client, rng) -> F_m(z).

    Args:
        operator: the operator of one client.
        start: the initial point z0 [d].
        split: the number of the d variables that belong to the min player; half by default.
        metrics: a function of the mean point z [d], reported in addition to the operator's norm.
        samples: the number of samples of each client, or a function of the client. The operator is
            then called as operator(z, client, sample), and F_m is the mean over all samples.
        batch_size: the number of samples per draw, with replacement; None for all of them.
    """

    operator: Callable[[Tensor, int, Any], Tensor]
    start: Tensor
    split: int | None = None
    metrics: Metrics | None = None
    samples: Samples = None
    batch_size: int | None = 1

    def oracle(self, site: Site) -> OperatorOracle:
        """Return the oracle of the clients hosted at a site."""
        return _OperatorFunctionOracle(self, site, type(self).__name__)


@dataclass(frozen=True)
class MinimaxProblem:
    """min over x, max over y of mean_m f_m(x, y), for loss(x, y, client, rng) -> f_m(x, y).

    Args:
        loss: the loss of one client, differentiable by autograd.
        x: the initial point of the min player [dx].
        y: the initial point of the max player [dy].
        metrics: a function of the mean point z = (x, y) [dx + dy].
        samples: the number of samples of each client, or a function of the client. The loss is then
            called as loss(x, y, client, sample), and f_m is the mean over all samples.
        batch_size: the number of samples per draw, with replacement; None for all of them.
    """

    loss: Callable[[Tensor, Tensor, int, Any], Tensor]
    x: Tensor
    y: Tensor
    metrics: Metrics | None = None
    samples: Samples = None
    batch_size: int | None = 1

    def oracle(self, site: Site) -> OperatorOracle:
        """Return the oracle of the clients hosted at a site."""
        split = self.x.numel()

        def operator(z: Tensor, client: int, xi: Any) -> Tensor:
            gx, gy = gradients_of(self.loss, z.split([split, len(z) - split]), client, xi)
            return torch.cat([gx, -gy])

        start = torch.cat([self.x, self.y])
        game = OperatorProblem(operator, start, split, self.metrics, self.samples, self.batch_size)
        return _OperatorFunctionOracle(game, site, type(self).__name__)


@dataclass(frozen=True)
class MinimisationProblem:
    """min over x of mean_m f_m(x), for loss(x, client, rng) -> f_m(x).

    Args:
        loss: the loss of one client, differentiable by autograd.
        x: the initial point [d].
        metrics: a function of the mean point x [d].
        samples: the number of samples of each client, or a function of the client. The loss is then
            called as loss(x, client, sample), and f_m is the mean over all samples.
        batch_size: the number of samples per draw, with replacement; None for all of them.
    """

    loss: Callable[[Tensor, int, Any], Tensor]
    x: Tensor
    metrics: Metrics | None = None
    samples: Samples = None
    batch_size: int | None = 1

    def oracle(self, site: Site) -> MinimisationFunctionOracle:
        """Return the oracle of the clients hosted at a site."""
        return MinimisationFunctionOracle(self, site)


@dataclass(frozen=True)
class CompositionalProblem:
    """min over x, max over y of mean_m f_m(mean_m g_m(x), y).

    Args:
        inner: inner(x, client, rng) -> g_m(x), a vector, differentiable by autograd.
        outer: outer(h, y, client, rng) -> f_m(h, y), differentiable by autograd.
        x: the initial point of the min player [dx].
        y: the initial point of the max player [dy].
        metrics: a function of the mean point z = (x, y) [dx + dy].
        samples: the number of samples of each client, or a function of the client. Both functions
            then get a sample in place of rng, and f_m and g_m are means over all samples.
        batch_size: the number of samples per draw, with replacement; None for all of them.
    """

    inner: Callable[[Tensor, int, Any], Tensor]
    outer: Callable[[Tensor, Tensor, int, Any], Tensor]
    x: Tensor
    y: Tensor
    metrics: Metrics | None = None
    samples: Samples = None
    batch_size: int | None = 1

    def oracle(self, site: Site) -> CompositionalFunctionOracle:
        """Return the oracle of the clients hosted at a site."""
        return CompositionalFunctionOracle(self, site)


class _OperatorFunctionOracle(OperatorFunction, OperatorOracle):
    def __init__(self, problem: OperatorProblem, site: Site, owner: str) -> None:
        split = problem.start.numel() // 2 if problem.split is None else problem.split
        OperatorOracle.__init__(self, site, problem.start, split)
        self._declare(problem, owner)
        self._operator = problem.operator

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        mean, noisy = sync(*self._all(self._operator, z))
        name = labelled("operator_norm", bool(noisy[0] > 0))
        return {name: float(mean[0].norm()), **self._own_metrics(z)}


class MinimisationFunctionOracle(OperatorFunction):
    """Gradients of a loss function by autograd."""

    def __init__(self, problem: MinimisationProblem, site: Site) -> None:
        super().__init__(site)
        self._declare(problem, type(problem).__name__)
        self._loss, self._operator = problem.loss, self._gradient
        self.z0 = self.x0 = site.rows(problem.x)

    def grad(self, x: Tensor, xi: Draw) -> Tensor:
        """Return the gradient of f_m(x_m; xi_m)."""
        return self.operator(x, xi)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """Return the only variable."""
        return {"x": z}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """Return train_loss, the mean of the clients' losses, and the problem's own metrics."""
        losses, noisy = self._all(self._loss, z)
        loss, noisy = sync(losses[:, None], noisy)
        name = labelled("train_loss", bool(noisy[0] > 0))
        return {name: float(loss[0]), **self._own_metrics(z)}

    def _gradient(self, x: Tensor, client: int, xi: Any) -> Tensor:
        (gradient,) = gradients_of(self._loss, (x,), client, xi)
        return gradient


class CompositionalFunctionOracle(FunctionOracle):
    """The Jacobian of the inner and the gradients of the outer function by autograd."""

    def __init__(self, problem: CompositionalProblem, site: Site) -> None:
        super().__init__(site)
        self._declare(problem, type(problem).__name__)
        self._inner, self._outer = problem.inner, problem.outer
        self.x0, self.y0 = site.rows(problem.x), site.rows(problem.y)
        self.z0 = torch.cat([self.x0, self.y0], dim=1)
        self._sizes = [problem.x.numel(), problem.y.numel()]

    def inner(self, x: Tensor, xi: Draw) -> tuple[Tensor, Pullback]:
        """Return g_m(x_m; xi_m), and the product with its transposed Jacobian."""
        rows = [row.detach().requires_grad_() for row in x]
        pairs = zip(rows, self.site.hosted, strict=True)
        with torch.enable_grad():
            values = [self._functions.mean(self._inner, (row,), c, xi) for row, c in pairs]

        def pullback(v: Tensor) -> Tensor:
            triples = zip(values, rows, v, strict=True)
            return torch.stack(
                [torch.autograd.grad(g, row, w, retain_graph=True)[0] for g, row, w in triples]
            )

        return torch.stack([value.detach() for value in values]), pullback

    def outer_grads(self, h: Tensor, y: Tensor, zeta: Draw) -> tuple[Tensor, Tensor]:
        """Return the gradients of f_m(h_m, y_m; zeta_m)."""
        sizes = [h.shape[1], y.shape[1]]

        def gradients(row: Tensor, client: int, xi: Any) -> Tensor:
            return torch.cat(gradients_of(self._outer, row.split(sizes), client, xi))

        gh, gy = self._each(gradients, torch.cat([h, y], dim=1), zeta).split(sizes, dim=1)
        return gh, gy

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """Return x and y by name."""
        x, y = z.split(self._sizes)
        return {"x": x, "y": y}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """Return train_loss, the mean of f_m(g(x), y), and the problem's own metrics."""
        x, y = z.split(self._sizes, dim=1)
        h, noisy_inner = sync(*self._all(self._inner, x))

        def outer(row: Tensor, client: int, xi: Any) -> Tensor:
            return self._outer(row[: h.shape[1]], row[h.shape[1] :], client, xi)

        losses, noisy_outer = self._all(outer, torch.cat([h, y], dim=1))
        loss, noisy = sync(losses[:, None], torch.maximum(noisy_inner, noisy_outer))
        name = labelled("train_loss", bool(noisy[0] > 0))
        return {name: float(loss[0]), **self._own_metrics(z)}
