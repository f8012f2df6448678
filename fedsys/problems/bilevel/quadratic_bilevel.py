"""A quadratic bilevel problem whose inner solution and hypergradient have closed forms.

It comes from no paper. It serves to test bilevel algorithms against exact values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.constants import Constants
from fedsys.core.errors import require
from fedsys.core.fields import Checked
from fedsys.core.oracles import Curvature, Draw
from fedsys.core.random import BlockedDraws, generator
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.bilevel.autograd import BilevelOracle
from fedsys.problems.games import spectra


@dataclass(frozen=True)
class QuadraticBilevel(Checked):
    """g_ij = y'A y/2 - y'(B x + b),  f_ij = |y - c|^2 / 2 + mu |x - e|^2 / 2, sample j of client i.

    With the means over a client's samples, y_i(x) = A^-1 (B x + b), and the gradient of
    h_i(x) = f_i(x, y_i(x)) is mu (x - e) + B'A^-1 (y_i(x) - c). A has eigenvalues in
    [conditioning, 1]; clients differ in all of their matrices.

    Args:
        dim: the size of x, and of y.
        samples: the number of samples of each client.
        batch_size: samples per draw, or None for all of them.
        mu: the strong convexity of f in x.
        conditioning: the smallest eigenvalue of A.
        spread: how much A and B differ between the samples of one client, from 0 to 1.
    """

    dim: int = 10
    samples: int = 20
    batch_size: int | None = None
    mu: float = 0.1
    conditioning: float = 0.2
    spread: float = 0.2

    kinds: ClassVar[tuple[str, ...]] = ("bilevel",)

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = "quadratic_bilevel"
        require(self.dim >= 1, owner, "dim", self.dim, "at least 1")
        require(self.samples >= 1, owner, "samples", self.samples, "at least 1")
        size = self.batch_size
        valid = size is None or size >= 1
        require(valid, owner, "batch_size", size, "at least 1, or null for all samples")
        require(self.mu > 0, owner, "mu", self.mu, "positive")
        valid = 0 < self.conditioning <= 1
        require(valid, owner, "conditioning", self.conditioning, "in (0, 1]")
        require(0 <= self.spread <= 1, owner, "spread", self.spread, "in [0, 1]")

    def oracle(self, site: Site) -> QuadraticBilevelOracle:
        """Return the oracle of the clients hosted at a site."""
        return QuadraticBilevelOracle(self, site)


@dataclass(frozen=True)
class _Matrices:
    """The second derivatives A and -B' of g."""

    A: Tensor
    B: Tensor

    def hessian_product(self, v: Tensor) -> Tensor:
        return _apply(self.A, v)

    def cross_product(self, v: Tensor) -> Tensor:
        return -_apply(self.B.mT, v)


class QuadraticBilevelOracle(BilevelOracle):
    """All derivatives, the inner solution and the hypergradient in closed form.

    It reports train_loss, the mean of h_m at the mean x, hypergradient_norm, the norm of the
    gradient of that mean, outer_loss, the mean of f_m(x, y_m) at each client's own y_m, and
    inner_residual, the mean of |grad_y g_m(x, y_m)|. At a solution outer_loss is train_loss.
    """

    uses_autograd = False

    def __init__(self, problem: QuadraticBilevel, site: Site) -> None:
        start = torch.ones(problem.dim)
        super().__init__(site, start, start)
        self.problem = problem
        self.sizes = [problem.samples] * len(site.hosted)
        drawn = [_client(problem, generator(site.seed, "bilevel", c)) for c in site.hosted]
        self._parts = [site.convert(np.stack(arrays)) for arrays in zip(*drawn, strict=True)]
        self._means = [part.mean(1) for part in self._parts]
        self._samples = BlockedDraws(site.seed, "samples", site.hosted)

    @property
    @override
    def finite_sum(self) -> bool:
        return self.problem.batch_size is not None

    @override
    def draw(self) -> Draw:
        # A draw is the mean of A, B, b, c and e over a batch of each client's samples.
        step, k = self._next()
        size = self.problem.batch_size
        if size is None:
            return self._means
        index = torch.from_numpy(self._samples.integers(step, k, self.problem.samples, size))
        rows = torch.arange(len(index))[:, None]
        return [part[rows, index].mean(1) for part in self._parts]

    @override
    def inner(self, x: Tensor, y: Tensor, xi: list[Tensor]) -> Tensor:
        A, B, b, _, _ = xi
        return (y * (_apply(A, y) / 2 - _apply(B, x) - b)).sum(1)

    @override
    def outer(self, x: Tensor, y: Tensor, xi: list[Tensor]) -> Tensor:
        _, _, _, c, e = xi
        return ((y - c).square() + self.problem.mu * (x - e).square()).sum(1) / 2

    @override
    def inner_grad(self, x: Tensor, y: Tensor, xi: list[Tensor]) -> Tensor:
        A, B, b, _, _ = xi
        return _apply(A, y) - _apply(B, x) - b

    @override
    def outer_grads(self, x: Tensor, y: Tensor, xi: list[Tensor]) -> tuple[Tensor, Tensor]:
        _, _, _, c, e = xi
        return self.problem.mu * (x - e), y - c

    @override
    def curvature(self, x: Tensor, y: Tensor, xi: list[Tensor]) -> Curvature:
        return _Matrices(xi[0], xi[1])

    # What the metrics are computed from.

    def inner_solution(self, x: Tensor) -> Tensor:
        """Return y_m(x_m)."""
        A, B, b, _, _ = self._means
        solution: Tensor = torch.linalg.solve(A, _apply(B, x) + b)
        return solution

    @override
    def _full_outer(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        losses = self.outer(x, y, self._means)[:, None]
        return losses, torch.zeros_like(losses)

    @override
    def _full_draws(self) -> tuple[Draw, Draw]:
        return self._means, self._means

    def hypergradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Return Phi_m(x_m, y_m), which is the gradient of h_m at y_m = y_m(x_m)."""
        A, B, _, c, e = self._means
        return self.problem.mu * (x - e) + _apply(B.mT, torch.linalg.solve(A, y - c))

    @override
    def constants(self, sync: Sync) -> Constants:
        # Exactly: second derivatives of g are constant, so that L_g = 0. Lipschitz constants are
        # those of every sample that can be drawn, the largest over all clients.
        whole = self.problem.batch_size is None
        A, B = (part.double()[:, None] if whole else part.double() for part in self._drawable())
        zero = torch.zeros_like(A)
        hessian = torch.cat([torch.cat([zero, -B.mT], 3), torch.cat([-B, A], 3)], 2)
        norms = [torch.linalg.matrix_norm(M, 2).amax(1) for M in (hessian, B)]
        smallest = torch.linalg.eigvalsh(self._means[0].double())[:, 0]
        rows = sync.gather(torch.stack([*norms, -smallest], 1))
        L, C_g, minus_mu = rows.max(0).values.tolist()
        return Constants(
            mu_y=-minus_mu,
            L=max(L, 1.0, self.problem.mu),
            C_g=C_g,
            L_g=0.0,
            dim=self.z0.shape[1],
        )

    def _drawable(self) -> list[Tensor]:
        parts = self._means if self.problem.batch_size is None else self._parts
        return parts[:2]

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        x, own_y = z.split(self.problem.dim, dim=1)
        y = self.inner_solution(x)
        losses, _ = self._full_outer(x, y)
        gradient, loss = sync(self.hypergradient(x, y), losses)
        own_losses, _ = self._full_outer(x, own_y)
        residuals = self.inner_grad(x, own_y, self._means).norm(dim=1, keepdim=True)
        outer_loss, residual = sync(own_losses, residuals)
        return {
            "hypergradient_norm": float(gradient[0].norm()),
            "train_loss": float(loss[0]),
            "outer_loss": float(outer_loss[0]),
            "inner_residual": float(residual[0]),
        }


def _client(problem: QuadraticBilevel, stream: np.random.Generator) -> list[np.ndarray]:
    """Return A, B, b, c and e of each sample of one client."""
    m, d, spread = problem.samples, problem.dim, problem.spread
    A, A_own = (spectra.symmetric(stream, n, d, problem.conditioning, 1.0) for n in (1, m))
    B, B_own = (stream.standard_normal((n, d, d)) / d**0.5 for n in (1, m))
    b, c, e = stream.standard_normal((3, 1, d)) + stream.standard_normal((3, m, d))
    return [(1 - spread) * A + spread * A_own, (1 - spread) * B + spread * B_own, b, c, e]


def _apply(M: Tensor, v: Tensor) -> Tensor:
    return (M @ v[:, :, None])[:, :, 0]
