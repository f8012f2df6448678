"""Bilevel problems that learn weights of training samples, with the loss on validation samples.

Group fairness learns one weight per group, hyper-cleaning one per sample. For the group weights see
Junyi Li, Feihu Huang, Heng Huang. Local Stochastic Bilevel Optimization with Momentum-Based
Variance Reduction. 2022. arXiv:2205.01608, eq. (48).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.clients.dense import Pull
from fedsys.clients.flat_module import leaf
from fedsys.clients.small_models import (
    NetworkModel,
    Samples,
    StackedBatches,
    losses,
    second_derivatives,
    slopes,
)
from fedsys.core.oracles import Curvature, Draw
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.bilevel.autograd import AutogradCurvature, shared_row
from fedsys.problems.bilevel.evaluation import stationarity
from fedsys.problems.stepping import SteppingOracle


class Weighting(Protocol):
    """A map from the outer variable to the weights of samples."""

    def __call__(self, x: Tensor, tags: Tensor) -> Tensor:
        """Return the weight of each sample: [C, B]."""

    def pull(self, x: Tensor, tags: Tensor, q: Tensor) -> Tensor:
        """Return the product of the transposed Jacobian in x with q [C, B]."""


class GroupWeighting:
    """One weight omega_a for each of K groups; x = 0 gives all of them the same weight.

        omega_a = exp(x_a) / sum_b p_b exp(x_b)

    The paper does not give the domain of the weights. If p_b is the share of group b among a
    client's training samples, the mean weight of its samples is 1 for every x: raising one weight
    neither strengthens the loss nor weakens the regulariser, and no client needs to know the shares
    of another. With p_b = 1/K (no shares given) the mean over the groups is 1: K softmax(x).

    Args:
        shares: p [C, K] of the hosted clients, or None for 1/K.
    """

    def __init__(self, shares: Tensor | None = None) -> None:
        self._shares = shares

    def weights(self, x: Tensor) -> Tensor:
        """Return omega [C, K]."""
        chances = x.softmax(1)
        if self._shares is None:
            return x.shape[1] * chances
        return chances / (self._shares * chances).sum(1, keepdim=True)

    def __call__(self, x: Tensor, tags: Tensor) -> Tensor:
        """Return omega of each sample's group."""
        return self.weights(x).gather(1, tags)

    def pull(self, x: Tensor, tags: Tensor, q: Tensor) -> Tensor:
        """Return the product of omega's transposed Jacobian and the sums of q over the groups."""
        omega, sums = self.weights(x), torch.zeros_like(x).scatter_add(1, tags, q)
        if self._shares is None:
            return omega * (sums - (omega * sums).sum(1, keepdim=True) / x.shape[1])
        return omega * (sums - self._shares * (omega * sums).sum(1, keepdim=True))


class SampleWeighting:
    """sigmoid(x_i) for sample i; x has an entry for each training sample of all clients."""

    def __call__(self, x: Tensor, tags: Tensor) -> Tensor:
        """Return the weight of each sample."""
        return x.gather(1, tags).sigmoid()

    def pull(self, x: Tensor, tags: Tensor, q: Tensor) -> Tensor:
        """Return q times the derivative of the sigmoid, in the entries of the batch."""
        w = self(x, tags)
        return torch.zeros_like(x).scatter_add(1, tags, q * w * (1 - w))


class ReweightingOracle(SteppingOracle):
    """g = mean w(x)_i loss(y; i) + l2 |y|^2 / 2 on training, f = mean loss(y; i) on validation.

    Args:
        site: the hosted clients, the seed, and the dtype and device of tensors.
        model: the model with parameters y, of all hosted clients.
        weighting: the map from x to the weights.
        x0: the initial x [dx].
        train: the samples of g.
        validation: the samples of f.
        l2: the weight of the regulariser, which makes g strongly convex if the model is linear.
    """

    def __init__(
        self,
        site: Site,
        model: NetworkModel,
        weighting: Weighting,
        x0: Tensor,
        train: StackedBatches,
        validation: StackedBatches,
        l2: float,
    ) -> None:
        super().__init__(site)
        self.model, self.weighting, self.l2 = model, weighting, l2
        self.train, self.validation = train, validation
        self.uses_autograd = not model.linear
        self.sizes = train.sizes
        self.x0, self.y0 = site.rows(x0), site.rows(model.start)
        self.z0 = torch.cat([self.x0, self.y0], dim=1)

    @property
    @override
    def finite_sum(self) -> bool:
        return True

    def draw(self) -> Draw:
        """Return the next batch of g."""
        return self.train.at(*self._next())

    def outer_draw(self) -> Draw:
        """Return the next batch of f."""
        return self.validation.at(*self._next())

    def inner_grad(self, x: Tensor, y: Tensor, xi: Samples) -> Tensor:
        """Return grad_y g_m."""
        z, pull = self.model.scores(y, xi.inputs)
        w = self.weighting(x, xi.tags) * xi.mass
        return pull(w[:, :, None] * slopes(z, xi.labels)) + self.l2 * y

    def outer_grads(self, x: Tensor, y: Tensor, xi: Samples) -> tuple[Tensor, Tensor]:
        """Return the gradients of f_m; that in x is 0, because f_m depends on x only through y."""
        z, pull = self.model.scores(y, xi.inputs)
        return torch.zeros_like(x), pull(xi.mass[:, :, None] * slopes(z, xi.labels))

    def outer_losses(self, y: Tensor) -> Tensor:
        """Return f_m(y_m) on all validation samples of client m: [C]."""
        xi = self.validation.whole
        z, _ = self.model.scores(y, xi.inputs)
        return (xi.mass * losses(z, xi.labels)).sum(1)

    def curvature(self, x: Tensor, y: Tensor, xi: Samples) -> Curvature:
        """Return the second derivatives: in closed form for a linear model, else by autograd."""
        if self.model.linear:
            return _LinearCurvature(self, x, xi, *self.model.scores(y, xi.inputs))
        with torch.enable_grad():
            x, y = leaf(x), leaf(y)
            loss = losses(self.model.forward(y, xi.inputs), xi.labels)
            g = (self.weighting(x, xi.tags) * xi.mass * loss).sum()
            (gy,) = torch.autograd.grad(g, y, create_graph=True)
            return AutogradCurvature(x, y, gy + self.l2 * y)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """Return x, and the parameters of the model, or [M, ...] those of all clients' models."""
        x, y = self.split(z)
        return {"x": shared_row(x), **self.model.named(y)}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """Return outer_loss, the mean of f_m(y_m), and for a linear model how stationary z is.

        A network has no unique inner solution, so it has no hypergradient to report.
        """
        x, y = self.split(z)
        metrics = {"outer_loss": float(sync(self.outer_losses(y)[:, None])[0])}
        if self.model.linear and self.l2 > 0:
            draws = self.validation.whole, self.train.whole
            metrics.update(stationarity(self, x, y, draws, sync))
        return metrics

    def split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and y of a point, or of rows of points."""
        sizes = [self.x0.shape[1], self.y0.shape[1]]
        x, y = z.split_with_sizes(sizes, dim=-1)
        return x, y


@dataclass(frozen=True)
class _LinearCurvature:
    """For scores J y: grad_yy g = J' diag(w loss'') J + l2 I, grad_xy g = w'(x)' diag(loss') J."""

    oracle: ReweightingOracle
    x: Tensor
    xi: Samples
    z: Tensor
    pull: Pull

    def hessian_product(self, v: Tensor) -> Tensor:
        oracle, xi = self.oracle, self.xi
        w = oracle.weighting(self.x, xi.tags) * xi.mass
        u = oracle.model.forward(v, xi.inputs)
        return self.pull(w[:, :, None] * second_derivatives(self.z, u)) + oracle.l2 * v

    def cross_product(self, v: Tensor) -> Tensor:
        oracle, xi = self.oracle, self.xi
        u = oracle.model.forward(v, xi.inputs)
        q = (slopes(self.z, xi.labels) * u).sum(2) * xi.mass
        return oracle.weighting.pull(self.x, xi.tags, q)
