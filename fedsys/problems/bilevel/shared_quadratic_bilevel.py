"""A quadratic bilevel problem whose lower level all clients share, with an exact solution.

It comes from no paper. It serves to test algorithms for a shared lower level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.bilevel.quadratic_bilevel import QuadraticBilevel, QuadraticBilevelOracle


@dataclass(frozen=True)
class SharedQuadraticBilevel(QuadraticBilevel):
    """The functions of `QuadraticBilevel`, with one y(x) = argmin of mean_i g_i(x, .).

        g_ij = y'A y/2 - y'(B x + b),  f_ij = |y - c|^2 / 2 + mu |x - e|^2 / 2

    With the means over all clients, y(x) = A^-1 (B x + b), the gradient of
    h(x) = mean_i f_i(x, y(x)) is mu (x - e) + B'A^-1 (y(x) - c), and x solves
    (mu I + B'A^-1 A^-1 B) x = mu e + B'A^-1 (c - A^-1 b).

    Args:
        dim: the size of x, and of y.
        samples: the number of samples of each client.
        batch_size: samples per draw, or None for all of them.
        mu: the strong convexity of f in x.
        conditioning: the smallest eigenvalue of A.
        spread: how much A and B differ between the samples of one client, from 0 to 1.
    """

    kinds: ClassVar[tuple[str, ...]] = ("shared_bilevel",)

    @override
    def oracle(self, site: Site) -> SharedQuadraticBilevelOracle:
        return SharedQuadraticBilevelOracle(self, site)


class SharedQuadraticBilevelOracle(QuadraticBilevelOracle):
    """All derivatives in closed form, and the solution from the means of the clients' matrices.

    It reports relative_error, the squared distance of x to the solution over that of the start;
    hypergradient_norm and train_loss of h at x; outer_loss, the mean of f_i(x, y); and
    inner_residual, the norm of mean_i grad_y g_i(x, y).
    """

    shared_inner = True

    def solution(self, sync: Sync) -> tuple[Tensor, Tensor]:
        """Return the minimiser x of h and y(x)."""
        A, B, b, c, e = self._averaged(sync)
        mu, slope = self.problem.mu, torch.linalg.solve(A, B)
        matrix = mu * torch.eye(len(b), dtype=b.dtype, device=b.device) + slope.mT @ slope
        x = torch.linalg.solve(matrix, mu * e + slope.mT @ (c - torch.linalg.solve(A, b)))
        return x, torch.linalg.solve(A, B @ x + b)

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        x, y = z.split(self.problem.dim, dim=1)
        A, B, b, c, e = self._averaged(sync)
        best = torch.linalg.solve(A, B @ x[0] + b)
        gradient = self.problem.mu * (x[0] - e) + B.mT @ torch.linalg.solve(A, best - c)
        losses, _ = self._full_outer(x, best.expand_as(y))
        own_losses, _ = self._full_outer(x, y)
        loss, own_loss = sync(losses, own_losses)
        solution, _ = self.solution(sync)
        distance = (x[0] - solution).square().sum() / (self.x0[0] - solution).square().sum()
        return {
            "relative_error": float(distance),
            "hypergradient_norm": float(gradient.norm()),
            "train_loss": float(loss[0]),
            "outer_loss": float(own_loss[0]),
            "inner_residual": float((A @ y[0] - B @ x[0] - b).norm()),
        }

    def _averaged(self, sync: Sync) -> list[Tensor]:
        """Return the means of A, B, b, c and e over all clients."""
        means = sync(*(part.flatten(1) for part in self._means))
        pairs = zip(means, self._means, strict=True)
        return [mean[0].view(part.shape[1:]) for mean, part in pairs]
