"""Learning the weights of training samples: bilevel, with a loss on validation samples outside.

Group fairness and hyper-cleaning differ only in what a weight belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedsys.communication import Sync
from fedsys.models import Pull
from fedsys.problems.bilevel import AutogradCurvature, leaf
from fedsys.problems.oracle import Curvature, Draw
from fedsys.problems.site import Site
from fedsys.problems.stacked import (
    NetworkModel,
    Samples,
    StackedBatches,
    bends,
    losses,
    slopes,
)
from fedsys.problems.stepping import SteppingOracle


class Weighting(Protocol):
    """From the outer variable to the weights of samples."""

    def __call__(self, x: Tensor, tags: Tensor) -> Tensor:
        """The weight of each sample: [C, B]."""

    def pull(self, x: Tensor, tags: Tensor, q: Tensor) -> Tensor:
        """The transposed Jacobian in x, times q [C, B]."""


class GroupWeighting:
    """omega = K softmax(x), one weight for each of K groups; x = 0 weights all alike.

    The paper's domain of the weights is not given; this one keeps them positive with mean 1.
    """

    def weights(self, x: Tensor) -> Tensor:
        """omega."""
        return x.shape[1] * x.softmax(1)

    def __call__(self, x: Tensor, tags: Tensor) -> Tensor:
        """omega of each sample's group."""
        return self.weights(x).gather(1, tags)

    def pull(self, x: Tensor, tags: Tensor, q: Tensor) -> Tensor:
        """The softmax's Jacobian, times the sums over the groups."""
        omega, sums = self.weights(x), torch.zeros_like(x).scatter_add(1, tags, q)
        return omega * (sums - (omega * sums).sum(1, keepdim=True) / x.shape[1])


class SampleWeighting:
    """sigmoid(x_i) for sample i; x has an entry for each training sample of all clients."""

    def __call__(self, x: Tensor, tags: Tensor) -> Tensor:
        """The weight of each sample."""
        return x.gather(1, tags).sigmoid()

    def pull(self, x: Tensor, tags: Tensor, q: Tensor) -> Tensor:
        """q times the sigmoid's slope, in the entries of the batch."""
        w = self(x, tags)
        return torch.zeros_like(x).scatter_add(1, tags, q * w * (1 - w))


class ReweightingOracle(SteppingOracle):
    """g = mean w(x)_i loss(y; i) + l2 |y|^2 / 2 on training, f = mean loss(y; i) on validation.

    Args:
        site: where the oracle lives.
        model: y, of all hosted clients.
        weighting: from x to weights.
        x0: where x starts [dx].
        train: what g is made of.
        validation: what f is made of.
        l2: makes g strongly convex where the model is linear.
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
    def finite_sum(self) -> bool:
        """Draws are batches."""
        return True

    def draw(self) -> Draw:
        """The next batch of g."""
        return self.train.at(*self._next())

    def outer_draw(self) -> Draw:
        """The next batch of f."""
        return self.validation.at(*self._next())

    def inner_grad(self, x: Tensor, y: Tensor, xi: Samples) -> Tensor:
        """grad_y g_m."""
        z, pull = self.model.scores(y, xi.inputs)
        w = self.weighting(x, xi.tags) * xi.mass
        return pull(w[:, :, None] * slopes(z, xi.labels)) + self.l2 * y

    def outer_grads(self, x: Tensor, y: Tensor, xi: Samples) -> tuple[Tensor, Tensor]:
        """f_m does not depend on x but through y."""
        z, pull = self.model.scores(y, xi.inputs)
        return torch.zeros_like(x), pull(xi.mass[:, :, None] * slopes(z, xi.labels))

    def outer_losses(self, y: Tensor) -> Tensor:
        """f_m(y_m) on all of client m's validation samples: [C]."""
        xi = self.validation.whole
        z, _ = self.model.scores(y, xi.inputs)
        return (xi.mass * losses(z, xi.labels)).sum(1)

    def curvature(self, x: Tensor, y: Tensor, xi: Samples) -> Curvature:
        """In closed form for a linear model, by autograd for others."""
        if self.model.linear:
            return _LinearCurvature(self, x, xi, *self.model.scores(y, xi.inputs))
        with torch.enable_grad():
            x, y = leaf(x), leaf(y)
            loss = losses(self.model.forward(y, xi.inputs), xi.labels)
            g = (self.weighting(x, xi.tags) * xi.mass * loss).sum()
            (gy,) = torch.autograd.grad(g, y, create_graph=True)
            return AutogradCurvature(x, y, gy + self.l2 * y)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """The outer variable, and the model."""
        x, y = self.split(z)
        return {"x": x, **self.model.named(y)}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """outer_loss, the mean of f_m at the mean point."""
        _, y = self.split(z)
        return {"outer_loss": float(sync(self.outer_losses(y)[:, None])[0])}

    def split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """x and y of a point, or of rows of points."""
        sizes = [self.x0.shape[1], self.y0.shape[1]]
        x, y = z.split_with_sizes(sizes, dim=-1)
        return x, y


@dataclass(frozen=True)
class _LinearCurvature:
    """With scores J y: grad_yy g = J' diag(w loss'') J + l2 I, grad_xy g = w'(x)' diag(loss') J."""

    oracle: ReweightingOracle
    x: Tensor
    xi: Samples
    z: Tensor
    pull: Pull

    def hessian_product(self, v: Tensor) -> Tensor:
        oracle, xi = self.oracle, self.xi
        w = oracle.weighting(self.x, xi.tags) * xi.mass
        u = oracle.model.forward(v, xi.inputs)
        return self.pull(w[:, :, None] * bends(self.z, u)) + oracle.l2 * v

    def cross_product(self, v: Tensor) -> Tensor:
        oracle, xi = self.oracle, self.xi
        u = oracle.model.forward(v, xi.inputs)
        q = (slopes(self.z, xi.labels) * u).sum(2) * xi.mass
        return oracle.weighting.pull(self.x, xi.tags, q)
