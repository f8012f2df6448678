"""The strongly monotone quadratic game of proxskip-vip.txt, eq. (5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsys.communication import Sync
from fedsys.errors import require
from fedsys.problems.games import OperatorOracle
from fedsys.problems.oracle import Draw, Site
from fedsys.random import BlockedDraws, generator


@dataclass(frozen=True)
class QuadraticGame:
    """f_ij(x1, x2) = x1'A x1/2 + x1'B x2 - x2'C x2/2 + a'x1 - c'x2, sample j of client i.

    A and C have eigenvalues in [0.01, 1], B in [0, 1]; a and c are standard normal. (The paper
    prints x1'C x1; only x2'C x2 makes a game.) Each client's matrices come from its own stream.

    Args:
        dim: d, the size of each player.
        samples: m, the samples of each client.
        batch_size: samples per draw, or None for all of them.
    """

    dim: int = 20
    samples: int = 100
    batch_size: int | None = None

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        owner = "quadratic_game"
        require(self.dim >= 1, owner, "dim", self.dim, "at least 1")
        require(self.samples >= 1, owner, "samples", self.samples, "at least 1")
        size = self.batch_size
        valid = size is None or size >= 1
        require(valid, owner, "batch_size", size, "at least 1, or null for all samples")

    def oracle(self, site: Site) -> QuadraticGameOracle:
        """The game of the clients hosted at a site."""
        return QuadraticGameOracle(self, site)


class QuadraticGameOracle(OperatorOracle):
    """F_ij(z) = M_ij z + b_ij with M = [[A, B], [-B, C]] and b = (a, c)."""

    def __init__(self, game: QuadraticGame, site: Site) -> None:
        super().__init__(site, torch.zeros(2 * game.dim), split=game.dim)
        pairs = [_client_game(game, site.seed, client) for client in site.hosted]
        self._M = site.convert(np.stack([M for M, _ in pairs]))
        self._b = site.convert(np.stack([b for _, b in pairs]))
        self._mean_M, self._mean_b = self._M.mean(1), self._b.mean(1)
        self.sizes = [game.samples] * len(pairs)
        self._samples, self._batch_size = game.samples, game.batch_size
        self._draws = BlockedDraws(site.seed, "samples", site.hosted)
        self._solution: Tensor | None = None

    def draw(self) -> Draw:
        """Sample numbers [C, B], with replacement, or None for all samples."""
        step, k = self._next()
        if self._batch_size is None:
            return None
        samples = self._draws.integers(step, k, self._samples, self._batch_size)
        return torch.from_numpy(samples).to(self._M.device)

    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        """The mean of F_ij over the drawn samples j."""
        if xi is None:
            return self.full_operator(z)
        client = torch.arange(len(z), device=z.device)[:, None]
        M, b = self._M[client, xi].mean(1), self._b[client, xi].mean(1)
        return torch.baddbmm(b[:, :, None], M, z[:, :, None])[:, :, 0]

    def full_operator(self, z: Tensor) -> Tensor:
        """The mean of F_ij over all samples j."""
        return torch.baddbmm(self._mean_b[:, :, None], self._mean_M, z[:, :, None])[:, :, 0]

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """||z - z*||^2 / ||z0 - z*||^2 and the norm of the mean operator."""
        solution = self.solution(sync)
        error = (z[0] - solution).square().sum() / (self.z0[0] - solution).square().sum()
        return {"relative_error": float(error), **super().evaluate(z, sync)}

    def solution(self, sync: Sync) -> Tensor:
        """z* = -(mean M)^-1 (mean b), found once and together."""
        if self._solution is None:
            M, b = sync(self._mean_M, self._mean_b)
            self._solution = -torch.linalg.solve(M[0].double(), b[0].double()).to(b.dtype)
        return self._solution


def _client_game(game: QuadraticGame, seed: int, client: int) -> tuple[np.ndarray, np.ndarray]:
    """M [m, 2d, 2d] and b [m, 2d] of one client."""
    stream = generator(seed, "quadratic game", client)
    A = _random_symmetric(stream, game, 0.01)
    C = _random_symmetric(stream, game, 0.01)
    B = _random_symmetric(stream, game, 0.0)
    b = stream.standard_normal((game.samples, 2 * game.dim))
    return np.block([[A, B], [-B, C]]), b


def _random_symmetric(stream: np.random.Generator, game: QuadraticGame, low: float) -> np.ndarray:
    """Matrices [m, d, d] with eigenvalues uniform in [low, 1] and uniform eigenvectors."""
    eigenvalues = stream.uniform(low, 1.0, (game.samples, 1, game.dim))
    Q, _ = np.linalg.qr(stream.standard_normal((game.samples, game.dim, game.dim)))
    product: np.ndarray = (Q * eigenvalues) @ Q.swapaxes(1, 2)
    return product
