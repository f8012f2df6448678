"""The strongly monotone quadratic game.

Siqi Zhang, Sayantan Choudhury, Sebastian U. Stich, Nicolas Loizou. Communication-Efficient Gradient
Descent-Accent Methods for Distributed Variational Inequalities: Unified Analysis and Local Updates.
ICLR 2024. arXiv:2306.05100, eq. (5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsys.core.errors import require
from fedsys.core.fields import Checked
from fedsys.core.random import generator
from fedsys.core.site import Site
from fedsys.problems.games import spectra
from fedsys.problems.games.affine import AffineOracle


@dataclass(frozen=True)
class QuadraticGame(Checked):
    """f_ij(x1, x2) = x1'A x1/2 + x1'B x2 - x2'C x2/2 + a'x1 - c'x2, sample j of client i.

    Zhang et al. (ICLR 2024), arXiv:2306.05100, eq. (5). A and C have eigenvalues in [0.01, 1], B in
    [0, 1]; a and c are standard normal. Each client draws its matrices from its own stream. The
    paper prints x1'C x1 instead of x2'C x2, but only the latter is strongly concave in x2.

    Args:
        dim: d, the size of each player.
        samples: m, the number of samples of each client.
        batch_size: samples per draw, or None for all of them.
        noise: sigma of Gaussian noise added to every draw.
    """

    dim: int = 20
    samples: int = 100
    batch_size: int | None = None
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = "quadratic_game"
        require(self.dim >= 1, owner, "dim", self.dim, "at least 1")
        require(self.samples >= 1, owner, "samples", self.samples, "at least 1")
        size = self.batch_size
        valid = size is None or size >= 1
        require(valid, owner, "batch_size", size, "at least 1, or null for all samples")
        require(self.noise >= 0, owner, "noise", self.noise, "at least 0")

    def oracle(self, site: Site) -> AffineOracle:
        """Return the oracle of F_ij(z) = M_ij z + b_ij, M = [[A, B], [-B, C]], b = (a, c)."""
        games = [_client_game(self, site.seed, client) for client in site.hosted]
        return AffineOracle(
            site, games, split=self.dim, batch_size=self.batch_size, noise=self.noise
        )


def _client_game(game: QuadraticGame, seed: int, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Return M [m, 2d, 2d] and b [m, 2d] of one client."""
    stream = generator(seed, "quadratic game", client)
    A = spectra.symmetric(stream, game.samples, game.dim, 0.01, 1.0)
    C = spectra.symmetric(stream, game.samples, game.dim, 0.01, 1.0)
    B = spectra.symmetric(stream, game.samples, game.dim, 0.0, 1.0)
    b = stream.standard_normal((game.samples, 2 * game.dim))
    return np.block([[A, B], [-B, C]]), b
