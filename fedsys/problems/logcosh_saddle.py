"""A smooth monotone game with a bounded operator that is not affine."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsys.communication import Sync
from fedsys.errors import require
from fedsys.problems.constants import Constants
from fedsys.problems.games import OperatorOracle
from fedsys.problems.oracle import Site
from fedsys.random import generator


@dataclass(frozen=True)
class LogCoshSaddle:
    """f = scale * sum_k [log cosh x_k - log cosh y_k + kappa tanh x_k tanh y_k], shifted to z*.

    All clients have this function: the homogeneous setting of Theorems 3 to 5 of
    faster-rates-federated-vi.txt. With a = tanh x, b = tanh y, p = 1 - a^2, q = 1 - b^2 the
    operator of a pair is V = (a + kappa p b, b - kappa a q) and its Jacobian

        J = [[d1, e], [-e, d2]], d1 = p (1 - 2 kappa a b), d2 = q (1 + 2 kappa a b), e = kappa p q,

    times scale. For kappa <= 1/2 we have d1, d2 > 0, so V is monotone. The constants, times scale:

    - c bounds d1 and d2: the largest (1 - t^2)(1 + 2 kappa t), where
      t = (sqrt(1 + 12 kappa^2) - 1) / (6 kappa).
    - e^2 <= kappa^2 d1 d2, because 1 - 4 kappa^2 a^2 b^2 >= p q.
    - L = c + kappa^2/2. The largest singular value of J is sqrt(m^2 + e^2) + |d1 - d2|/2 with
      m = (d1 + d2)/2; it is at most max(d1, d2) + e^2/(2m), and 2m >= 2 sqrt(d1 d2) >= 2 p q.
    - beta = c (1 + kappa^2). With S = diag(d1, d2) and K' = e/sqrt(d1 d2) [[0, 1], [-1, 0]] we have
      J = S^1/2 (I + K') S^1/2, so J'J <= max(d1, d2)(1 + kappa^2) S; integrate along a segment.
    - G = sqrt(2 dim), the supremum: |a + kappa p b| < 1 for kappa <= 1/2.
    - Lambda = (4/sqrt(27) + 2 kappa)/2, half of a bound of V's second derivative: |tanh''| is at
      most 4/sqrt(27), and the third derivatives of tanh x tanh y have Frobenius norm at most 2.

    Args:
        dim: pairs (x_k, y_k), the size of each player.
        kappa: coupling of the players, in [0, 1/2].
        scale: of the whole function.
        distance: ||z* - z0||, also the radius of the gap; z0 = 0, and the seed turns z*.
        noise: sigma of Gaussian noise added to every draw.
    """

    dim: int = 5
    kappa: float = 0.5
    scale: float = 1.0
    distance: float = 2.0
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        owner = "logcosh_saddle"
        require(self.dim >= 1, owner, "dim", self.dim, "at least 1")
        require(0 <= self.kappa <= 0.5, owner, "kappa", self.kappa, "in [0, 1/2]")
        require(self.scale > 0, owner, "scale", self.scale, "positive")
        require(self.distance > 0, owner, "distance", self.distance, "positive")
        require(self.noise >= 0, owner, "noise", self.noise, "at least 0")

    def oracle(self, site: Site) -> LogCoshOracle:
        """The same operator for every client."""
        return LogCoshOracle(self, site)


class LogCoshOracle(OperatorOracle):
    """The operator of LogCoshSaddle, its constants and its gap."""

    def __init__(self, game: LogCoshSaddle, site: Site) -> None:
        super().__init__(site, torch.zeros(2 * game.dim), split=game.dim, noise=game.noise)
        self._game = game
        direction = generator(site.seed, "logcosh saddle").standard_normal(2 * game.dim)
        self._shift = direction * (game.distance / np.linalg.norm(direction))
        self._solution = site.convert(self._shift)

    def full_operator(self, z: Tensor) -> Tensor:
        """V(z - z*)."""
        a, b = (z - self._solution).tanh().split(self._split, dim=1)
        kappa = self._game.kappa
        first = a + kappa * (1 - a.square()) * b
        second = b - kappa * (1 - b.square()) * a
        return self._game.scale * torch.cat([first, second], dim=1)

    def solution(self, sync: Sync) -> Tensor:
        """z*."""
        return self._solution

    def constants(self, sync: Sync) -> Constants:
        """As derived in the docstring of LogCoshSaddle; co-coercivity is an upper bound."""
        game, kappa = self._game, self._game.kappa
        t = (sqrt(1 + 12 * kappa**2) - 1) / (6 * kappa) if kappa > 0 else 0.0
        c = (1 - t**2) * (1 + 2 * kappa * t)
        beta = game.scale * c * (1 + kappa**2)
        return Constants(
            L=game.scale * (c + kappa**2 / 2),
            ell_spectral=beta,
            ell_exact=beta,
            ell_samples_spectral=beta,
            ell_samples_exact=beta,
            beta=beta,
            sigma=game.noise,
            G=game.scale * sqrt(2 * game.dim),
            Lambda=game.scale * (4 / sqrt(27) + 2 * kappa) / 2,
            radius=game.distance,
            dim=2 * game.dim,
        )

    def gap(self, z: Tensor, sync: Sync) -> float:
        """sup over ||u - z0|| <= D of <V(u), z - u>, by ascent from several starts.

        The function is not concave, so beyond a few dimensions this is a lower bound that more
        starts may raise. It is never negative: u = z* gives 0.
        """
        return _Ascent(self._game, self._shift, z[0].double().cpu().numpy()).best()


class _Ascent:
    """Maximises g(u) = <V(u - z*), z - u> over the ball around 0, for rows u [n, d] at once."""

    STARTS = 24
    STEPS = 300

    def __init__(self, game: LogCoshSaddle, shift: np.ndarray, z: np.ndarray) -> None:
        self._game, self._shift, self._z = game, shift, z

    def best(self) -> float:
        """The largest value that projected gradient steps of Barzilai-Borwein length find."""
        u = self._project(self._starts())
        value, slope = self._value_and_slope(u)
        best, step = value.max(), np.full((len(u), 1), 1 / self._game.scale)
        for _ in range(self.STEPS):
            after = self._project(u + step * slope)
            value, new_slope = self._value_and_slope(after)
            best = max(best, value.max())
            moved, bent = after - u, slope - new_slope
            curvature = (moved * bent).sum(1, keepdims=True)
            length = (moved**2).sum(1, keepdims=True)
            # Where the function is not concave along the step, a long one.
            trusted = np.divide(length, curvature, where=curvature > 0, out=4 * step)
            step = np.clip(trusted, 0.05 / self._game.scale, 50 / self._game.scale)
            u, slope = after, new_slope
        return max(0.0, float(best))

    def _starts(self) -> np.ndarray:
        """Points between 0, z* and z, and fixed random ones in the ball."""
        shares = np.linspace(0, 1, 6)[:, None]
        segments = [shares * self._z, shares * self._shift]
        segments.append(shares * self._z + (1 - shares) * self._shift)
        spread = generator(0, "gap starts").standard_normal((self.STARTS, len(self._z)))
        lengths = np.linspace(0.2, 1.0, self.STARTS)[:, None] * self._game.distance
        spread *= lengths / np.linalg.norm(spread, axis=1, keepdims=True)
        return np.concatenate([*segments, spread])

    def _project(self, u: np.ndarray) -> np.ndarray:
        norms = np.linalg.norm(u, axis=1, keepdims=True)
        inside: np.ndarray = u * (self._game.distance / np.maximum(norms, self._game.distance))
        return inside

    def _value_and_slope(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """g [n] and its gradient J(u)'(z - u) - V(u) [n, d]."""
        kappa, scale = self._game.kappa, self._game.scale
        a, b = np.split(np.tanh(u - self._shift), 2, axis=1)
        p, q = 1 - a**2, 1 - b**2
        V = scale * np.concatenate([a + kappa * p * b, b - kappa * q * a], axis=1)
        right, up = np.split(self._z - u, 2, axis=1)
        product = 2 * kappa * a * b
        turned = [
            p * (1 - product) * right - kappa * p * q * up,
            q * (1 + product) * up + kappa * p * q * right,
        ]
        return (V * (self._z - u)).sum(1), scale * np.concatenate(turned, axis=1) - V
