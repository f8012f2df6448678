"""Small affine games with an adjustable difference between the clients.

Siqi Zhang, Sayantan Choudhury, Sebastian U. Stich, Nicolas Loizou. Communication-Efficient Gradient
Descent-Accent Methods for Distributed Variational Inequalities: Unified Analysis and Local Updates.
ICLR 2024. arXiv:2306.05100, Appendices H.3 and H.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedsys.core.errors import InputError, require
from fedsys.core.fields import Checked
from fedsys.core.random import generator
from fedsys.core.site import Site
from fedsys.problems.games import spectra
from fedsys.problems.games.affine import AffineOracle


@dataclass(frozen=True)
class HeterogeneousToy(Checked):
    """f_i(x, y) = -[||y||^2/2 - b_i'y + t_i y'x] + lam ||x||^2/2, b_i ~ N(0, s_i^2 I).

    Zhang et al. (ICLR 2024), arXiv:2306.05100, Appendix H.3, with 100 clients. With low
    heterogeneity all Jacobians are equal, so local steps are unbiased and only the speed of
    convergence differs.

    Args:
        dim: d, the size of each player.
        lam: lambda, the curvature in x.
        heterogeneity: "low" for s_i = 10 and t_i = 1; "high" for s_i ~ U(0, 20), t_i ~ U(0, 1).
        noise: sigma of Gaussian noise added to every draw.
    """

    dim: int = 20
    lam: float = 0.1
    heterogeneity: str = "low"
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        owner, levels = "toy", ("low", "high")
        require(self.dim >= 1, owner, "dim", self.dim, "at least 1")
        require(self.lam > 0, owner, "lam", self.lam, "positive")
        level = self.heterogeneity
        require(level in levels, owner, "heterogeneity", level, "low or high")
        require(self.noise >= 0, owner, "noise", self.noise, "at least 0")

    def oracle(self, site: Site) -> AffineOracle:
        """Return the oracle of F_i(x, y) = (lam x - t_i y, t_i x + y - b_i)."""
        games = [self._client_game(site.seed, client) for client in site.hosted]
        return AffineOracle(site, games, split=self.dim, noise=self.noise)

    def _client_game(self, seed: int, client: int) -> tuple[np.ndarray, np.ndarray]:
        stream = generator(seed, "toy", client)
        s, t = 10.0, 1.0
        if self.heterogeneity == "high":
            s, t = stream.uniform(0, 20), stream.uniform(0, 1)
        M = np.kron(np.array([[self.lam, -t], [t, 1.0]]), np.eye(self.dim))
        b = np.concatenate([np.zeros(self.dim), -s * stream.standard_normal(self.dim)])
        return M[None], b[None]


@dataclass(frozen=True)
class TwoPoints(Checked):
    """F_1(z) = z - (delta, 0) and F_2(z) = z - (0, delta), from z0 = (1, 1), for 2 clients.

    Zhang et al. (ICLR 2024), arXiv:2306.05100, Appendix H.4. With z = (x, y) and client i's point
    (p, q), f_i = (x - p)^2/2 - (y - q)^2/2. The solution is (delta, delta)/2, and
    ||F_i - F|| = delta/sqrt(2) everywhere.

    Args:
        delta: the distance of each client's own solution from the origin; 0 and 1e6 in the paper.
        noise: sigma of Gaussian noise added to every draw.
    """

    delta: float = 0.0
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = "two_points"
        valid = self.delta >= 0 and self.delta != 2
        require(valid, owner, "delta", self.delta, "at least 0, and not 2: z0 solves that")
        require(self.noise >= 0, owner, "noise", self.noise, "at least 0")

    def oracle(self, site: Site) -> AffineOracle:
        """Return the oracle of M = I and b = -(the client's point)."""
        clients = site.placement.clients
        if clients != 2:
            raise InputError(f"two_points: clients must be 2, got {clients}; use clients=2")
        games = [(np.eye(2)[None], -self.delta * np.eye(2)[None, i]) for i in site.hosted]
        return AffineOracle(site, games, split=1, z0=torch.ones(2), noise=self.noise)


@dataclass(frozen=True)
class BilinearGame(Checked):
    """f_i(x, y) = x'B y + a_i'x - c_i'y: gradient descent-ascent diverges for every step size.

    The standard example of a monotone game that needs an extra-gradient step; it comes from no
    particular paper. B has singular values in [0.5, 1] and is the same on all clients.
    (a_i, c_i) = (a, c) + offset_i, where a and c are standard normal and shared by all clients, and
    each client draws its own normal offset.

    Args:
        dim: d, the size of each player.
        heterogeneity: the standard deviation of the offsets; 0 for identical clients.
        noise: sigma of Gaussian noise added to every draw.
    """

    dim: int = 10
    heterogeneity: float = 0.0
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = "bilinear"
        require(self.dim >= 1, owner, "dim", self.dim, "at least 1")
        spread = self.heterogeneity
        require(spread >= 0, owner, "heterogeneity", spread, "at least 0")
        require(self.noise >= 0, owner, "noise", self.noise, "at least 0")

    def oracle(self, site: Site) -> AffineOracle:
        """Return the oracle of F_i(x, y) = (B y + a_i, c_i - B'x)."""
        stream = generator(site.seed, "bilinear game")
        (B,) = spectra.square(stream, 1, self.dim, 0.5, 1.0)
        zero = np.zeros_like(B)
        M = np.block([[zero, B], [-B.T, zero]])
        shared = stream.standard_normal(2 * self.dim)
        own = [generator(site.seed, "bilinear offset", client) for client in site.hosted]
        offsets = [self.heterogeneity * s.standard_normal(2 * self.dim) for s in own]
        games = [(M[None], (shared + offset)[None]) for offset in offsets]
        return AffineOracle(site, games, split=self.dim, noise=self.noise)
