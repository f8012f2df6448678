"""Compositional deep AUC maximisation.

Xinwen Zhang, Yihan Zhang, Tianbao Yang, Richard Souvenir, Hongchang Gao. Federated Compositional
Deep AUC Maximization. NeurIPS 2023. arXiv:2304.10101, eq. (2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.clients.batches import Batch
from fedsys.clients.stacked_modules import StackedModules
from fedsys.core.errors import require
from fedsys.core.oracles import Draw, Pullback
from fedsys.core.site import Site
from fedsys.problems.networks.auc import DeepAUC, DeepAUCOracle
from fedsys.problems.networks.binary import cross_entropy


@dataclass(frozen=True)
class CompositionalAUC(DeepAUC):
    """The AUC loss of a network after one gradient step on the cross-entropy.

        f(g(x), alpha),   g(w, a, b) = (w - rho grad CE(w), a, b),   f the loss of `DeepAUC`

    Zhang et al. (NeurIPS 2023), arXiv:2304.10101, eq. (2). Minimax algorithms solve `DeepAUC`,
    without g.

    Args:
        dataset: the data set.
        partition: the partition of the samples over the clients.
        model: the network, with one output.
        batch_size: samples per draw, or None for all.
        imbalance: how the labels are made binary and how many positives are kept.
        positive_ratio: the samples over which p is computed, "global" or "client".
        rho: the inner step size; the paper does not give it.
        jacobian: the Jacobian of g: "exact" by a Hessian-vector product, or "identity" (first
            order).
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

    @override
    def oracle(self, site: Site) -> CompositionalAUCOracle:
        exact = self.jacobian == "exact"
        return CompositionalAUCOracle(
            *self._parts(site),
            rho=self.rho,
            exact=exact,
            evaluation=self.score_evaluation,
            options=self.options,
        )


class CompositionalAUCOracle(DeepAUCOracle):
    """The inner step by autograd; its Jacobian I - rho Hessian uses the graph of the gradient."""

    def __init__(self, *args: Any, rho: float, exact: bool, **others: Any) -> None:
        super().__init__(*args, **others)
        self._rho, self._exact = rho, exact
        if self._at_once is not None:
            self._stack = StackedModules(self._players[:1])

    def outer_grads(self, h: Tensor, y: Tensor, zeta: Draw) -> tuple[Tensor, Tensor]:
        """Return the gradients of the AUC loss."""
        return self.grads(h, y, zeta)

    def inner(self, x: Tensor, xi: Draw) -> tuple[Tensor, Pullback]:
        """Return x - rho grad CE(x; xi), and v -> v - rho Hessian v with the same xi."""
        dim = x.shape[1]
        evaluate = self._one_by_one if self._batched(xi) is None else self._joint
        points, gradients = evaluate(x, xi)

        def pullback(v: Tensor) -> Tensor:
            if not self._exact:
                return v
            # The Hessian is symmetric: the gradient of <grad CE, v> is the product Hessian v.
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
        """Return the point of all clients as one tensor, and the gradients there."""
        inputs, labels, _ = batch
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
        """Return the point of each client, and the gradient there."""
        # The leaves share memory with the state, whose rows are never modified in place.
        points = [row.detach().requires_grad_() for row in x]
        gradients = [self._gradient(c, point, batch) for c, point in enumerate(points)]
        return points, gradients

    def _gradient(self, client: int, point: Tensor, batch: Batch) -> Tensor:
        """Return one client's gradient of the cross-entropy, with its graph if needed."""
        self._load_statistics(client)
        inputs, labels = batch.inputs[client], batch.labels[client]
        with torch.enable_grad(), self._random_numbers(client, batch):
            loss = self._players[0].at(point, cross_entropy, inputs, labels)
            (gradient,) = torch.autograd.grad(loss, point, create_graph=self._exact)
        self._keep_statistics(client)
        return gradient
