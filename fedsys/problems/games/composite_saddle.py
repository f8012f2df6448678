"""An l1-regularised saddle-point problem with a planted solution, for composite algorithms.

It is constructed for Guanghui Wang, Satyen Kale. Faster Rates For Federated Variational
Inequalities. 2026. arXiv:2602.09164, Section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.errors import require
from fedsys.core.fields import Checked
from fedsys.core.random import generator
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.games import spectra
from fedsys.problems.games.affine import AffineOracle
from fedsys.problems.terms import L1


@dataclass(frozen=True)
class CompositeSaddle(Checked):
    """min over x, max over y of x'A x/2 + x'B y - y'C y/2 + a_i'x - c_i'y + w||x||_1 - w||y||_1.

    Wang and Kale (2026), arXiv:2602.09164, Section 5. A composite problem with phi(z) = w ||z||_1
    for the algorithm of eq. (13). A and C have eigenvalues in [mu, 1] and B has singular values in
    [0, 1]; all clients share them. z* is sparse, and b = (a, c) is chosen such that z* is the
    solution: -V(z*) is w sign(z*) where z* is not 0, and between -0.9 w and 0.9 w elsewhere. All of
    this is drawn from one stream of the seed.

    Args:
        dim: d, the size of each player.
        support: the number of nonzero coordinates of z*, which has 2d.
        weight: w.
        mu: the modulus of strong monotonicity.
        heterogeneity: the standard deviation of the clients' offsets of b. They are drawn for all
            clients together and centred, so that z* remains the solution.
        noise: sigma of Gaussian noise added to every draw.
    """

    dim: int = 20
    support: int = 8
    weight: float = 0.1
    mu: float = 0.1
    heterogeneity: float = 0.0
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = "composite_saddle"
        require(self.dim >= 1, owner, "dim", self.dim, "at least 1")
        valid = 1 <= self.support <= 2 * self.dim
        require(valid, owner, "support", self.support, f"from 1 to 2 dim = {2 * self.dim}")
        require(self.weight > 0, owner, "weight", self.weight, "positive")
        require(0 < self.mu <= 1, owner, "mu", self.mu, "in (0, 1]")
        spread = self.heterogeneity
        require(spread >= 0, owner, "heterogeneity", spread, "at least 0")
        require(self.noise >= 0, owner, "noise", self.noise, "at least 0")

    def oracle(self, site: Site) -> CompositeOracle:
        """Return the oracle of F_i(z) = M z + b + offset_i."""
        stream = generator(site.seed, "composite saddle")
        A, C = spectra.symmetric(stream, 2, self.dim, self.mu, 1.0)
        (B,) = spectra.square(stream, 1, self.dim, 0.0, 1.0)
        M = np.block([[A, B], [-B.T, C]])
        z, subgradient = self._planted(stream)
        b = -M @ z - self.weight * subgradient
        own = generator(site.seed, "composite offsets")
        offsets = own.standard_normal((site.placement.clients, len(b)))
        offsets = self.heterogeneity * (offsets - offsets.mean(axis=0))
        games = [(M[None], (b + offsets[client])[None]) for client in site.hosted]
        return CompositeOracle(site, games, self, torch.from_numpy(z))

    def _planted(self, stream: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return z* and a subgradient of ||.||_1 at z*."""
        size = 2 * self.dim
        subgradient = stream.uniform(-0.9, 0.9, size)
        z = np.zeros(size)
        chosen = stream.choice(size, self.support, replace=False)
        subgradient[chosen] = stream.choice([-1.0, 1.0], self.support)
        z[chosen] = subgradient[chosen] * stream.uniform(0.5, 1.5, self.support)
        return z, subgradient


class CompositeOracle(AffineOracle):
    """An affine game with phi = w ||.||_1 for both players and a known solution; z0 = 0."""

    def __init__(
        self,
        site: Site,
        games: list[tuple[np.ndarray, np.ndarray]],
        game: CompositeSaddle,
        solution: Tensor,
    ) -> None:
        term = L1(game.weight)
        super().__init__(site, games, split=game.dim, noise=game.noise, terms=(term, term))
        self._term = term
        self._known["solution"] = solution.to(self.z0)

    @override
    def gap(self, z: Tensor, sync: Sync) -> float:
        # sup over ||u|| <= D of <V(u), z - u> + phi(z) - phi(u), up to rounding. The function is
        # strongly concave, so accelerated proximal steps converge linearly. The proximal map of phi
        # on a ball around 0 is a soft threshold, scaled back into the ball.
        M, b = self.mean_game(sync)
        D, point = self.radius(sync), z[:1].double()
        values = torch.linalg.eigvalsh(M + M.T)  # curvatures of -<V(u), z - u>
        step, root = 1 / float(values[-1]), float((values[0] / values[-1]).sqrt())
        u = before = torch.zeros_like(point)
        slope = point @ M - b
        for _ in range(int(40 / root) + 1):
            ahead = u + (1 - root) / (1 + root) * (u - before)
            after = self._term.prox(ahead + step * (slope - ahead @ (M + M.T)), step)
            before, u = u, after * (D / after.norm().clamp(min=D))
        V = u @ M.T + b
        terms = self._term.value(point) - self._term.value(u)
        return max(0.0, float(((point - u) * V).sum() + terms[0]))
