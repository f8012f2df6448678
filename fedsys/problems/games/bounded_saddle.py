"""Smooth monotone games with a bounded operator that are not affine.

They are constructed, with known constants, for the theorems of Guanghui Wang, Satyen Kale. Faster
Rates For Federated Variational Inequalities. 2026. arXiv:2602.09164. That paper has no experiments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.constants import Constants
from fedsys.core.errors import require
from fedsys.core.fields import Checked
from fedsys.core.random import generator
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.games.operator_oracle import OperatorOracle

Values = TypeVar("Values", Tensor, np.ndarray)


@dataclass(frozen=True)
class BoundedSaddle(Checked, ABC):
    """f = scale * sum_k f_k(x_k, y_k), shifted to z*, the same for all clients.

    This is the homogeneous setting of Wang and Kale (2026), arXiv:2602.09164, Theorems 1 to 7. A
    subclass gives the operator of a pair (x_k, y_k) in terms of a = tanh x_k and b = tanh y_k.

    Args:
        dim: the number of pairs (x_k, y_k), which is the size of each player.
        scale: the factor of the whole function.
        distance: ||z* - z0||, where z0 = 0; the seed determines the direction of z*.
        radius: D, the radius of the ball over which the gap is taken; None for the distance.
        noise: sigma of Gaussian noise added to every draw.
    """

    dim: int = 5
    scale: float = 1.0
    distance: float = 2.0
    radius: float | None = None
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")
    name: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.dim >= 1, self.name, "dim", self.dim, "at least 1")
        require(self.scale > 0, self.name, "scale", self.scale, "positive")
        require(self.distance > 0, self.name, "distance", self.distance, "positive")
        valid = self.radius is None or self.radius > 0
        require(valid, self.name, "radius", self.radius, "positive, or null for the distance")
        require(self.noise >= 0, self.name, "noise", self.noise, "at least 0")

    @property
    def ball(self) -> float:
        """D, the radius of the ball."""
        return self.distance if self.radius is None else self.radius

    @abstractmethod
    def operator(self, a: Values, b: Values) -> tuple[Values, Values]:
        """Return (df/dx, -df/dy) of the pairs."""

    @abstractmethod
    def jacobian(self, a: Values, b: Values) -> tuple[Values, Values, Values]:
        """Return d1, d2 and e of the pairs' Jacobians [[d1, e], [-e, d2]]."""

    @abstractmethod
    def constants(self) -> Constants:
        """Return L, Lambda and beta for scale 1."""

    def oracle(self, site: Site) -> BoundedSaddleOracle:
        """Return an oracle with the same operator for every client."""
        return BoundedSaddleOracle(self, site)


@dataclass(frozen=True)
class LogCoshSaddle(BoundedSaddle):
    """f = scale * sum_k [log cosh x_k - log cosh y_k + kappa tanh x_k tanh y_k], shifted to z*.

    A game for Wang and Kale (2026), arXiv:2602.09164, that is co-coercive, as Theorem 6 assumes.
    With a = tanh x, b = tanh y, p = 1 - a^2, q = 1 - b^2 the operator of a pair is
    V = (a + kappa p b, b - kappa a q) and its Jacobian

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

    The Jacobian is definite at z*, so the gap of a point is quadratic in its distance to z*.

    Args:
        kappa: the coupling of the players, in [0, 1/2].
    """

    kappa: float = 0.5

    name: ClassVar[str] = "logcosh_saddle"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.kappa <= 0.5, self.name, "kappa", self.kappa, "in [0, 1/2]")

    @override
    def operator(self, a: Values, b: Values) -> tuple[Values, Values]:
        return a + self.kappa * (1 - a**2) * b, b - self.kappa * (1 - b**2) * a

    @override
    def jacobian(self, a: Values, b: Values) -> tuple[Values, Values, Values]:
        p, q, product = 1 - a**2, 1 - b**2, 2 * self.kappa * a * b
        return p * (1 - product), q * (1 + product), self.kappa * p * q

    @override
    def constants(self) -> Constants:
        # Derived in the docstring of the class; beta is an upper bound.
        kappa = self.kappa
        t = (sqrt(1 + 12 * kappa**2) - 1) / (6 * kappa) if kappa > 0 else 0.0
        c = (1 - t**2) * (1 + 2 * kappa * t)
        return Constants(
            L=c + kappa**2 / 2, beta=c * (1 + kappa**2), Lambda=(4 / sqrt(27) + 2 * kappa) / 2
        )


@dataclass(frozen=True)
class SkewSaddle(BoundedSaddle):
    """f = scale * sum_k [u(x_k) - u(y_k) + tanh x_k tanh y_k], u(s) = |s| - tanh |s|, at z*.

    A game for Wang and Kale (2026), arXiv:2602.09164, without the co-coercivity that Theorem 6
    assumes. With a, b, p, q as for LogCoshSaddle and u'(x) = a |a|, the operator of a pair is
    V = (a |a| + p b, b |b| - a q) and its Jacobian has

        d1 = 2 p (|a| - a b), d2 = 2 q (|b| + a b), e = p q.

    |a|, |b| < 1, so d1, d2 >= 0 and V is monotone. At z* the Jacobian is skew-symmetric, so V is
    not co-coercive, and plain descent-ascent rotates around z*. The gap scales with the distance to
    z* to the power 3/2, because u' is quadratic in it. The constants, times scale:

    - L = 8/sqrt(27), the supremum of d1, for a = 1/sqrt(3) and b -> -1; a test checks on a grid
      that no singular value is larger.
    - G = sqrt(2 dim): |a |a| + p b| <= a^2 + p = 1.
    - Lambda = 3: |dd1/dx| <= 4 p (p + 2 a^2) <= 4 and likewise dd2/dy, the other derivatives of
      d1, d2 and e are at most 4/sqrt(27), so V's second derivative has Frobenius norm below 6.
    """

    radius: float | None = 4.0

    name: ClassVar[str] = "skew_saddle"

    @override
    def operator(self, a: Values, b: Values) -> tuple[Values, Values]:
        return a * abs(a) + (1 - a**2) * b, b * abs(b) - (1 - b**2) * a

    @override
    def jacobian(self, a: Values, b: Values) -> tuple[Values, Values, Values]:
        p, q = 1 - a**2, 1 - b**2
        return 2 * p * (abs(a) - a * b), 2 * q * (abs(b) + a * b), p * q

    @override
    def constants(self) -> Constants:
        # Derived in the docstring of the class.
        return Constants(L=8 / sqrt(27), beta=inf, Lambda=3.0)


class BoundedSaddleOracle(OperatorOracle):
    """The operator of a bounded saddle, its constants and its gap."""

    uses_autograd = False

    def __init__(self, game: BoundedSaddle, site: Site) -> None:
        super().__init__(site, torch.zeros(2 * game.dim), split=game.dim, noise=game.noise)
        self._game = game
        direction = generator(site.seed, "logcosh saddle").standard_normal(2 * game.dim)
        self._shift = direction * (game.distance / np.linalg.norm(direction))
        self._solution = site.convert(self._shift)

    @override
    def full_operator(self, z: Tensor) -> Tensor:
        a, b = (z - self._solution).tanh().split(self._split, dim=1)
        return self._game.scale * torch.cat(self._game.operator(a, b), dim=1)

    @override
    def solution(self, sync: Sync) -> Tensor:
        return self._solution

    @override
    def constants(self, sync: Sync) -> Constants:
        game = self._game
        unit, s = game.constants(), game.scale
        return replace(
            unit,
            L=s * unit.L,
            Lambda=s * unit.Lambda,
            G=s * sqrt(2 * game.dim),
            beta=s * unit.beta,
            ell_spectral=s * unit.beta,
            ell_exact=s * unit.beta,
            ell_samples_spectral=s * unit.beta,
            ell_samples_exact=s * unit.beta,
            sigma=game.noise,
            radius=game.ball,
            dim=2 * game.dim,
        )

    @override
    def gap(self, z: Tensor, sync: Sync) -> float:
        # sup over ||u - z0|| <= D of <V(u), z - u>, by ascent from several starts. The function is
        # not concave, so beyond a few dimensions this is a lower bound that more starts may raise.
        # It is never negative if the ball contains z*, because u = z* gives 0.
        return _Ascent(self._game, self._shift, z[0].double().cpu().numpy()).best()


class _Ascent:
    """Maximise g(u) = <V(u - z*), z - u> over the ball around 0, for all rows u [n, d] at once."""

    STARTS = 24
    STEPS = 300

    def __init__(self, game: BoundedSaddle, shift: np.ndarray, z: np.ndarray) -> None:
        self._game, self._shift, self._z = game, shift, z

    def best(self) -> float:
        """Return the largest value found by projected gradient steps of Barzilai-Borwein length."""
        u = self._project(self._starts())
        value, slope = self._value_and_slope(u)
        best, step = value.max(), np.full((len(u), 1), 1 / self._game.scale)
        for _ in range(self.STEPS):
            after = self._project(u + step * slope)
            value, new_slope = self._value_and_slope(after)
            best = max(best, value.max())
            move, slope_change = after - u, slope - new_slope
            curvature = (move * slope_change).sum(1, keepdims=True)
            length = (move**2).sum(1, keepdims=True)
            if length.max() < (1e-14 * self._game.ball) ** 2:  # all rows have converged
                break
            # Where the function is not concave along the step, the next step is 4 times as long.
            proposed = np.divide(length, curvature, where=curvature > 0, out=4 * step)
            step = np.clip(proposed, 0.05 / self._game.scale, 50 / self._game.scale)
            u, slope = after, new_slope
        return max(0.0, float(best))

    def _starts(self) -> np.ndarray:
        """Return points on the segments between 0, z* and z, and fixed random ones in the ball."""
        shares = np.linspace(0, 1, 6)[:, None]
        segments = [shares * self._z, shares * self._shift]
        segments.append(shares * self._z + (1 - shares) * self._shift)
        spread = generator(0, "gap starts").standard_normal((self.STARTS, len(self._z)))
        lengths = np.linspace(0.2, 1.0, self.STARTS)[:, None] * self._game.ball
        spread *= lengths / np.linalg.norm(spread, axis=1, keepdims=True)
        return np.concatenate([*segments, spread])

    def _project(self, u: np.ndarray) -> np.ndarray:
        norms = np.linalg.norm(u, axis=1, keepdims=True)
        inside: np.ndarray = u * (self._game.ball / np.maximum(norms, self._game.ball))
        return inside

    def _value_and_slope(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return g [n] and its gradient J(u)'(z - u) - V(u) [n, d]."""
        scale = self._game.scale
        a, b = np.split(np.tanh(u - self._shift), 2, axis=1)
        V = scale * np.concatenate(self._game.operator(a, b), axis=1)
        d1, d2, e = self._game.jacobian(a, b)
        wx, wy = np.split(self._z - u, 2, axis=1)
        product = [d1 * wx - e * wy, d2 * wy + e * wx]
        return (V * (self._z - u)).sum(1), scale * np.concatenate(product, axis=1) - V
