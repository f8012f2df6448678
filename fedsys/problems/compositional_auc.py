"""Compositional deep AUC maximisation, localscgdam.txt eq. (2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsys.data import Batch
from fedsys.errors import require
from fedsys.models import StackedModules
from fedsys.problems.auc import DeepAUC, DeepAUCOracle
from fedsys.problems.binary import cross_entropy
from fedsys.problems.oracle import Draw, Pullback
from fedsys.problems.site import Site


@dataclass(frozen=True)
class CompositionalAUC(DeepAUC):
    """The AUC loss of a network that has taken one more step on the cross-entropy.

        f(g(x), alpha),   g(w, a, b) = (w - rho grad CE(w), a, b),   f the loss of `DeepAUC`

    As a minimax problem it is `DeepAUC`, g left out.

    Args:
        dataset: where the samples come from.
        partition: which client gets which.
        model: the network, with one output.
        batch_size: samples per draw, or None for all.
        imbalance: how the task is made binary and its positives rare.
        positive_ratio: whose share of positives p is, "global" or "client".
        rho: the inner step; the paper does not say which.
        jacobian: of g, "exact" by a Hessian-vector product, or "identity" (first order).
    """

    rho: float = 0.01
    jacobian: str = "exact"

    kinds: ClassVar[tuple[str, ...]] = (*DeepAUC.kinds, "compositional")
    differentiates_twice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rho >= 0, "compositional_auc", "rho", self.rho, "not negative")
        known = self.jacobian in ("exact", "identity")
        require(known, "compositional_auc", "jacobian", self.jacobian, "exact or identity")

    def oracle(self, site: Site) -> CompositionalAUCOracle:
        """The oracle of the clients hosted at a site."""
        exact = self.jacobian == "exact"
        return CompositionalAUCOracle(*self._parts(site), rho=self.rho, exact=exact)


class CompositionalAUCOracle(DeepAUCOracle):
    """The inner step by autograd; its Jacobian I - rho Hessian from the graph of the gradient."""

    def __init__(self, *args: Any, rho: float, exact: bool) -> None:
        super().__init__(*args)
        self._rho, self._exact = rho, exact
        if self._at_once is not None:
            self._stack = StackedModules(self._players[:1])

    def outer_grads(self, h: Tensor, y: Tensor, zeta: Draw) -> tuple[Tensor, Tensor]:
        """The gradients of the AUC loss."""
        return self.grads(h, y, zeta)

    def inner(self, x: Tensor, xi: Draw) -> tuple[Tensor, Pullback]:
        """x - rho grad CE(x; xi), and v -> v - rho Hessian v with the same xi."""
        dim = x.shape[1]
        points, gradients = self._one_by_one(x, xi) if self._way(xi) is None else self._joint(x, xi)

        def pullback(v: Tensor) -> Tensor:
            if not self._exact:
                return v
            # A Hessian is symmetric: the gradient of <grad CE, v> is its product with v.
            vectors = v.split(len(v) // len(points))
            products = [
                torch.autograd.grad(gradient, point, vector.view_as(point), retain_graph=True)[0]
                for gradient, point, vector in zip(gradients, points, vectors, strict=True)
            ]
            joined = torch.cat([product.view(-1, dim) for product in products])
            return v.sub(joined, alpha=self._rho)

        values = torch.cat([gradient.detach().view(-1, dim) for gradient in gradients])
        return x.sub(values, alpha=self._rho), pullback

    def _joint(self, x: Tensor, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """The point of all clients at once, and the gradients there."""
        inputs, labels = batch
        assert isinstance(inputs, Tensor)
        assert isinstance(labels, Tensor)
        if not self._exact:
            return [x], [self._stack.gradients(cross_entropy, (x,), inputs, labels)]
        point = x.detach().requires_grad_()
        with torch.enable_grad():
            losses = self._stack(cross_entropy, (point,), inputs, labels)
            (gradient,) = torch.autograd.grad(losses.sum(), point, create_graph=True)
        return [point], [gradient]

    def _one_by_one(self, x: Tensor, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """The point of each client, and the gradient there."""
        # Leaves of their own, without a copy: the rows of a state are never written to.
        points = [row.detach().requires_grad_() for row in x]
        gradients = [self._gradient(c, point, batch) for c, point in enumerate(points)]
        return points, gradients

    def _gradient(self, client: int, point: Tensor, batch: Batch) -> Tensor:
        """One client's gradient of the cross-entropy, with its graph if that is needed."""
        self._load_statistics(client)
        inputs, labels = batch.inputs[client], batch.labels[client]
        with torch.enable_grad():
            loss = self._players[0].at(point, cross_entropy, inputs, labels)
            (gradient,) = torch.autograd.grad(loss, point, create_graph=self._exact)
        self._keep_statistics(client)
        return gradient
