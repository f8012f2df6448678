"""The strongly monotone quadratic game of proxskip-vip.txt, eq. (5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsys.errors import require
from fedsys.problems import spectra
from fedsys.problems.affine import AffineOracle
from fedsys.problems.site import Site
from fedsys.random import generator


@dataclass(frozen=True)
class QuadraticGame:
    """f_ij(x1, x2) = x1'A x1/2 + x1'B x2 - x2'C x2/2 + a'x1 - c'x2, sample j of client i.

    A and C have eigenvalues in [0.01, 1], B in [0, 1]; a and c are standard normal. (The paper
    prints x1'C x1; only x2'C x2 makes a game.) Each client's matrices come from its own stream.

    Args:
        dim: d, the size of each player.
        samples: m, the samples of each client.
        batch_size: samples per draw, or None for all of them.
        noise: sigma of Gaussian noise added to every draw.
    """

    dim: int = 20
    samples: int = 100
    batch_size: int | None = None
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        owner = "quadratic_game"
        require(self.dim >= 1, owner, "dim", self.dim, "at least 1")
        require(self.samples >= 1, owner, "samples", self.samples, "at least 1")
        size = self.batch_size
        valid = size is None or size >= 1
        require(valid, owner, "batch_size", size, "at least 1, or null for all samples")
        require(self.noise >= 0, owner, "noise", self.noise, "at least 0")

    def oracle(self, site: Site) -> AffineOracle:
        """F_ij(z) = M_ij z + b_ij with M = [[A, B], [-B, C]] and b = (a, c)."""
        games = [_client_game(self, site.seed, client) for client in site.hosted]
        return AffineOracle(
            site, games, split=self.dim, batch_size=self.batch_size, noise=self.noise
        )


def _client_game(game: QuadraticGame, seed: int, client: int) -> tuple[np.ndarray, np.ndarray]:
    """M [m, 2d, 2d] and b [m, 2d] of one client."""
    stream = generator(seed, "quadratic game", client)
    A = spectra.symmetric(stream, game.samples, game.dim, 0.01, 1.0)
    C = spectra.symmetric(stream, game.samples, game.dim, 0.01, 1.0)
    B = spectra.symmetric(stream, game.samples, game.dim, 0.0, 1.0)
    b = stream.standard_normal((game.samples, 2 * game.dim))
    return np.block([[A, B], [-B, C]]), b
