"""A synthetic problem with a known saddle point and heterogeneous clients.

Feihu Huang, Xinrui Wang, Junyi Li, Songcan Chen. Adaptive Federated Minimax Optimization with Lower
Complexities. AISTATS 2024. arXiv:2211.07303, eq. (12).
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
from fedsys.problems.games.affine import AffineOracle


@dataclass(frozen=True)
class SyntheticSaddle(Checked):
    """f_k(x, y) = tau ||x||^2/2 - (||y||^2/2 - b_k'y + t_k y'x), from x = y = start (1, ..., 1).

    Huang et al. (AISTATS 2024), arXiv:2211.07303, eq. (12). b_k ~ N(0, s^2 I) minus their mean over
    the clients; t_k ~ U(0, 0.1). Since the b_k sum to zero, the saddle point is x = y = 0.

    Args:
        dim: d, the size of each player.
        tau: the curvature in x.
        s: the heterogeneity; the paper uses 1 and 10.
        start: the initial value of every coordinate.
        noise: sigma of Gaussian noise added to every draw.
    """

    dim: int = 10
    tau: float = 10.0
    s: float = 1.0
    start: float = 10.0
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = "synthetic_saddle"
        require(self.dim >= 1, owner, "dim", self.dim, "at least 1")
        require(self.tau > 0, owner, "tau", self.tau, "positive")
        require(self.s >= 0, owner, "s", self.s, "at least 0")
        require(self.start != 0, owner, "start", self.start, "not 0, which is the solution")
        require(self.noise >= 0, owner, "noise", self.noise, "at least 0")

    def oracle(self, site: Site) -> SyntheticSaddleOracle:
        """Return the oracle of F_k(x, y) = (tau x - t_k y, t_k x + y - b_k)."""
        streams = [
            generator(site.seed, "synthetic saddle", client)
            for client in range(site.placement.clients)
        ]
        t = [stream.uniform(0, 0.1) for stream in streams]
        b = self.s * np.stack([stream.standard_normal(self.dim) for stream in streams])
        b -= b.mean(0)
        games = [self._client_game(t[k], b[k]) for k in site.hosted]
        z0 = torch.full((2 * self.dim,), float(self.start))
        return SyntheticSaddleOracle(site, games, self.dim, z0, noise=self.noise)

    def _client_game(self, t: float, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        M = np.kron(np.array([[self.tau, -t], [t, 1.0]]), np.eye(self.dim))
        return M[None], np.concatenate([np.zeros(self.dim), -b])[None]


class SyntheticSaddleOracle(AffineOracle):
    """An affine game that also reports the distance of each player from the saddle point.

    The metrics are distance_x = ||x - x*||^2 and distance_y = ||y - y*||^2, where x* = y* = 0.
    """

    @override
    def solution(self, sync: Sync) -> Tensor:
        return torch.zeros_like(self.z0[0])

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        x, y = self.named(z[0] - self.solution(sync)).values()
        distances = {"distance_x": float(x.square().sum()), "distance_y": float(y.square().sum())}
        return {**super().evaluate(z, sync), **distances}
