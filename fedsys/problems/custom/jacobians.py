"""Jacobians of a user's operator, as matrices and as products with vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor


class Products:
    """Products of one client's Jacobian and its transpose with vectors."""

    def __init__(self, F: Callable[[Tensor], Tensor], z: Tensor, row: int) -> None:
        with torch.enable_grad():
            self._z = z.clone().requires_grad_()
            self._F, self._row = F(self._z), row
            # The product J'u is linear in u, so its derivative in u gives J v.
            self._u = torch.zeros_like(self._F).requires_grad_()
            (self._back,) = torch.autograd.grad(
                self._F, self._z, self._u, create_graph=True, materialize_grads=True
            )
        self._d = z.shape[1]

    def transposed(self, v: np.ndarray) -> np.ndarray:
        """Return J'v."""
        return self._pulled(self._F, self._z, v)

    def forward(self, v: np.ndarray) -> np.ndarray:
        """Return J v."""
        return self._pulled(self._back, self._u, v)

    def _pulled(self, value: Tensor, variable: Tensor, v: np.ndarray) -> np.ndarray:
        cotangent = torch.zeros_like(value)
        cotangent[self._row] = torch.from_numpy(v.ravel()).to(value)
        (found,) = torch.autograd.grad(
            value, variable, cotangent, retain_graph=True, materialize_grads=True
        )
        product: np.ndarray = found[self._row].double().cpu().numpy()
        return product

    def largest_singular(self) -> float:
        """Return ||J||."""
        square = self._linear(lambda v: self.transposed(self.forward(v)))
        return float(np.sqrt(max(0.0, eigsh(square, 1, which="LA", tol=1e-5)[0][0])))

    def smallest_symmetric(self) -> float:
        """Return the smallest eigenvalue of (J + J') / 2."""
        symmetric = self._linear(lambda v: (self.forward(v) + self.transposed(v)) / 2)
        return float(eigsh(symmetric, 1, which="SA", tol=1e-4, maxiter=20 * self._d)[0][0])

    def _linear(self, product: Callable[[np.ndarray], np.ndarray]) -> LinearOperator:
        return LinearOperator((self._d, self._d), matvec=product, dtype=np.float64)


def jacobian(F: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Return the Jacobian [C, d, d] of each row of F, by autograd where it is differentiable.

    Central differences serve functions that compute outside of torch.
    """
    with torch.enable_grad():
        leaf = z.detach().clone().requires_grad_()
        value = F(leaf)
        if value.requires_grad:
            rows = [
                torch.autograd.grad(column.sum(), leaf, retain_graph=True, materialize_grads=True)[
                    0
                ]
                for column in value.unbind(1)
            ]
            return torch.stack(rows, dim=1)
    with torch.no_grad():
        h = float(torch.finfo(z.dtype).eps) ** (1 / 3) * max(1.0, float(z.abs().max()))
        steps = h * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
        columns = [(F(z + e) - F(z - e)) / (2 * h) for e in steps]
        return torch.stack(columns, dim=2)
