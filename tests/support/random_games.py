"""Random strongly monotone affine problems, on which the bounds of theorems must hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsys.core.site import Site
from fedsys.problems.games.affine import AffineOracle
from fedsys.problems.terms import NONE, Term

SAMPLES, DIM = 3, 3


@dataclass(frozen=True)
class RandomGame:
    """F_ij(z) = M_ij z + b_ij with a strongly monotone mean on every client.

    Args:
        seed: of the matrices; the seed of the run is that of draws and coins.
        skew: the size of the skew part of the clients' Jacobians.
        spread: how much the samples of a client differ.
        batch_size: samples per draw, or None for all of them.
        alike: whether all clients have the operator of the first.
        terms: the composite terms of both players.
        noise: sigma of additive noise.
    """

    seed: int
    skew: float = 1.0
    spread: float = 0.5
    batch_size: int | None = None
    alike: bool = False
    terms: tuple[Term, Term] = (NONE, NONE)
    noise: float = 0.0

    def oracle(self, site: Site) -> AffineOracle:
        """Return the oracle of the hosted clients."""
        return self.make(AffineOracle, site)

    def make(self, kind: type[AffineOracle], site: Site) -> AffineOracle:
        """Return an oracle of this class."""
        games = [self._client(client) for client in site.hosted]
        more = {"batch_size": self.batch_size, "terms": self.terms, "noise": self.noise}
        return kind(site, games, 2, **more)

    def _client(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        stream = np.random.default_rng([self.seed, 0 if self.alike else client])
        root = stream.standard_normal((DIM, DIM))
        S = root @ root.T / DIM + stream.uniform(0.05, 1) * np.eye(DIM)
        K = self.skew * stream.standard_normal((DIM, DIM))
        deviation = self.spread * stream.standard_normal((SAMPLES, DIM, DIM))
        M = S + (K - K.T) / 2 + deviation - deviation.mean(0)
        return M, stream.standard_normal((SAMPLES, DIM))
