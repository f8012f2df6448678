"""Composite terms and constraints: the one place where prox and mirror maps are written.

A term phi acts on a block of variables [C, n] of one player. `prox` is the Euclidean proximal map
and `mirror` the map from the dual to the primal space that dual extrapolation uses (eq. 13 of
faster-rates-federated-vi.txt): the gradient of the conjugate of h + weight * phi. For h = ||.||^2/2
the two coincide; the entropic simplex has the negative entropy as h.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsys.errors import require


@dataclass(frozen=True)
class Term:
    """No term: both maps are the identity."""

    def prox(self, v: Tensor, step: float) -> Tensor:
        """argmin_u phi(u) + ||u - v||^2 / (2 step)."""
        return v

    def mirror(self, v: Tensor, weight: float) -> Tensor:
        """argmax_u <v, u> - h(u) - weight phi(u)."""
        return self.prox(v, weight)

    def value(self, v: Tensor) -> Tensor:
        """phi, for each row: [C]. Constraints count as zero; their maps keep to them."""
        return v.new_zeros(len(v))


@dataclass(frozen=True)
class L1(Term):
    """weight * ||v||_1; its prox is the soft threshold."""

    weight: float = 0.1

    def __post_init__(self) -> None:
        require(self.weight >= 0, "l1", "weight", self.weight, "at least 0")

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Soft threshold by step * weight."""
        return torch.nn.functional.softshrink(v, step * self.weight)

    def value(self, v: Tensor) -> Tensor:
        """weight * ||v||_1."""
        return self.weight * v.abs().sum(1)


@dataclass(frozen=True)
class L2(Term):
    """weight * ||v||^2 / 2; its prox is a shrinkage."""

    weight: float = 0.1

    def __post_init__(self) -> None:
        require(self.weight >= 0, "l2", "weight", self.weight, "at least 0")

    def prox(self, v: Tensor, step: float) -> Tensor:
        """v / (1 + step * weight)."""
        return v / (1 + step * self.weight)

    def value(self, v: Tensor) -> Tensor:
        """weight * ||v||^2 / 2."""
        return self.weight * v.square().sum(1) / 2


@dataclass(frozen=True)
class Box(Term):
    """low <= v <= high, in every coordinate."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        require(self.low < self.high, "box", "low", self.low, f"below high={self.high}")

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Clip."""
        return v.clamp(self.low, self.high)


@dataclass(frozen=True)
class Ball(Term):
    """||v|| <= radius."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        require(self.radius > 0, "ball", "radius", self.radius, "positive")

    def prox(self, v: Tensor, step: float) -> Tensor:
        """Scale back to the surface what is outside."""
        norms: Tensor = torch.linalg.vector_norm(v, dim=1, keepdim=True)
        return v * (norms.clamp(min=self.radius).reciprocal() * self.radius)


@dataclass(frozen=True)
class Simplex(Term):
    """v >= 0 and sum(v) = 1.

    Args:
        entropic: whether the mirror map is that of the negative entropy (softmax) instead of the
            Euclidean projection.
    """

    entropic: bool = False

    def prox(self, v: Tensor, step: float) -> Tensor:
        """The Euclidean projection, by sorting."""
        v = v - v.amax(1, keepdim=True)  # changes nothing, and keeps large values exact
        ordered = v.sort(dim=1, descending=True).values
        excess = ordered.cumsum(1) - 1
        ranks = torch.arange(1, v.shape[1] + 1, dtype=v.dtype, device=v.device)
        active = (ordered * ranks > excess).sum(1, keepdim=True).clamp(min=1)
        threshold = excess.gather(1, active - 1) / active
        return (v - threshold).clamp(min=0)

    def mirror(self, v: Tensor, weight: float) -> Tensor:
        """softmax, or the projection."""
        return v.softmax(1) if self.entropic else self.prox(v, weight)


NONE = Term()


class TwoPlayers:
    """The maps of an oracle whose players x and y have a term each; mix in before the oracle."""

    _terms: tuple[Term, Term] = (NONE, NONE)
    _split: int
    """How many of the variables belong to x."""

    def prox_x(self, x: Tensor, step: float) -> Tensor:
        """The proximal map of the min player's term."""
        return self._terms[0].prox(x, step)

    def prox_y(self, y: Tensor, step: float) -> Tensor:
        """The proximal map of the max player's term."""
        return self._terms[1].prox(y, step)

    def prox(self, z: Tensor, step: float) -> Tensor:
        """The proximal map of both terms."""
        if not self._has_terms:
            return z
        x, y = z[:, : self._split], z[:, self._split :]
        return torch.cat([self.prox_x(x, step), self.prox_y(y, step)], dim=1)

    def mirror(self, z: Tensor, weight: float) -> Tensor:
        """From the dual to the primal space, with both terms weighted."""
        if not self._has_terms:
            return z
        x, y = z[:, : self._split], z[:, self._split :]
        first, second = self._terms
        return torch.cat([first.mirror(x, weight), second.mirror(y, weight)], dim=1)

    @property
    def _has_terms(self) -> bool:
        return self._terms != (NONE, NONE)
