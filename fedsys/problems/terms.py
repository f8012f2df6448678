"""Composite terms and constraints, with their proximal and mirror maps.

A term phi acts on a block of variables [C, n] of one player. `prox` is the Euclidean proximal map
and `mirror` the map from the dual to the primal space that dual extrapolation uses (Guanghui
Wang, Satyen Kale. Faster Rates For Federated Variational Inequalities. 2026. arXiv:2602.09164, eq.
(13)): the gradient of the conjugate of h + weight * phi. For h = ||.||^2/2 the two coincide; the
entropic simplex has the negative entropy as h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.errors import InputError, require
from fedsys.core.oracles import StepSize


@dataclass(frozen=True)
class Term:
    """No term: both maps are the identity."""

    def prox(self, v: Tensor, step: StepSize) -> Tensor:
        """Return argmin_u phi(u) + sum_k (u_k - v_k)^2 / (2 step_k).

        A single step size gives the Euclidean proximal map, and step 0 the projection onto the
        domain of phi. Without a term the result is v itself, not a copy.
        """
        return v

    def mirror(self, v: Tensor, weight: float) -> Tensor:
        """Return argmax_u <v, u> - h(u) - weight phi(u)."""
        return self.prox(v, weight)

    def value(self, v: Tensor) -> Tensor:
        """Return phi of each row: [C]. It is 0 for a constraint, which the maps enforce."""
        return v.new_zeros(len(v))


@dataclass(frozen=True)
class L1(Term):
    """weight * ||v||_1; the proximal map is the soft threshold by step * weight."""

    weight: float = 0.1

    def __post_init__(self) -> None:
        require(self.weight >= 0, "l1", "weight", self.weight, "at least 0")

    @override
    def prox(self, v: Tensor, step: StepSize) -> Tensor:
        if isinstance(step, Tensor):
            return v.sign() * (v.abs() - step * self.weight).clamp(min=0)
        return torch.nn.functional.softshrink(v, step * self.weight)

    @override
    def value(self, v: Tensor) -> Tensor:
        return self.weight * v.abs().sum(1)


@dataclass(frozen=True)
class L2(Term):
    """weight * ||v||^2 / 2; the proximal map is v / (1 + step * weight)."""

    weight: float = 0.1

    def __post_init__(self) -> None:
        require(self.weight >= 0, "l2", "weight", self.weight, "at least 0")

    @override
    def prox(self, v: Tensor, step: StepSize) -> Tensor:
        return v / (1 + step * self.weight)

    @override
    def value(self, v: Tensor) -> Tensor:
        return self.weight * v.square().sum(1) / 2


@dataclass(frozen=True)
class Box(Term):
    """low <= v <= high in every coordinate; the proximal map clips."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        require(self.low < self.high, "box", "low", self.low, f"below high={self.high}")

    @override
    def prox(self, v: Tensor, step: StepSize) -> Tensor:
        return v.clamp(self.low, self.high)


@dataclass(frozen=True)
class Ball(Term):
    """||v|| <= radius; the proximal map scales points outside of the ball back to its surface."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        require(self.radius > 0, "ball", "radius", self.radius, "positive")

    @override
    def prox(self, v: Tensor, step: StepSize) -> Tensor:
        if isinstance(step, Tensor):
            v = self._shrink(v, step)
        norms: Tensor = torch.linalg.vector_norm(v, dim=1, keepdim=True)
        return v * (norms.clamp(min=self.radius).reciprocal() * self.radius)

    def _shrink(self, v: Tensor, step: Tensor) -> Tensor:
        """Return u_k = v_k / (1 + t step_k), with the smallest t >= 0 such that ||u|| <= radius.

        t is found by Newton's method on 1/||u|| - 1/radius, which is concave in t: from t = 0 the
        iterates rise monotonically to the root. The caller removes the part that rounding leaves
        outside of the ball.
        """
        t = v.new_zeros(len(v), 1)
        for _ in range(_MAX_NEWTON_STEPS):
            u = v / (1 + t * step)
            norms = torch.linalg.vector_norm(u, dim=1, keepdim=True)
            excess = (norms / self.radius - 1).clamp(min=0)
            if not bool((excess > 4 * torch.finfo(v.dtype).eps).any()):
                break
            slope = (u.square() * step / (1 + t * step)).sum(1, keepdim=True)
            t = t + torch.where(excess > 0, excess * norms.square() / slope, 0.0)
        return v / (1 + t * step)


@dataclass(frozen=True)
class Simplex(Term):
    """v >= 0 and sum(v) = 1; the proximal map is the projection, by sorting.

    With one step size per coordinate it is the projection in the norm weighted by 1 / step.

    Args:
        entropic: whether the mirror map is that of the negative entropy (softmax) instead of the
            Euclidean projection.
    """

    entropic: bool = False

    @override
    def prox(self, v: Tensor, step: StepSize) -> Tensor:
        if isinstance(step, Tensor):
            return self._weighted(v, step)
        v = v - v.amax(1, keepdim=True)  # the projection is the same, and large values stay exact
        ordered = v.sort(dim=1, descending=True).values
        excess = ordered.cumsum(1) - 1
        ranks = torch.arange(1, v.shape[1] + 1, dtype=v.dtype, device=v.device)
        active = (ordered * ranks > excess).sum(1, keepdim=True).clamp(min=1)
        threshold = excess.gather(1, active - 1) / active
        return (v - threshold).clamp(min=0)

    def _weighted(self, v: Tensor, step: Tensor) -> Tensor:
        """Return u_k = max(v_k - t step_k, 0), with t such that the coordinates sum to 1."""
        order = (v / step).argsort(dim=1, descending=True)
        excess = v.gather(1, order).cumsum(1) - 1
        thresholds = excess / step.gather(1, order).cumsum(1)
        active = ((v / step).gather(1, order) > thresholds).sum(1, keepdim=True).clamp(min=1)
        return (v - thresholds.gather(1, active - 1) * step).clamp(min=0)

    @override
    def mirror(self, v: Tensor, weight: float) -> Tensor:
        return v.softmax(1) if self.entropic else self.prox(v, weight)


@dataclass(frozen=True)
class NuclearNorm(Term):
    """weight times the sum of the singular values of a matrix; the proximal map shrinks them.

    It acts on variables of matrix shape [C, n, m], and has no closed form with a step size for each
    coordinate.
    """

    weight: float = 0.1

    of_matrices: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.weight >= 0, "nuclear_norm", "weight", self.weight, "at least 0")

    @override
    def prox(self, v: Tensor, step: StepSize) -> Tensor:
        if isinstance(step, Tensor):
            if step[0].numel() > 1:
                raise InputError(
                    "NuclearNorm has no proximal map with a step size for each coordinate; use an "
                    "algorithm without adaptive matrices"
                )
            step = step.reshape(-1, 1)
        U, values, Vh = torch.linalg.svd(v, full_matrices=False)
        shrunk = (values - step * self.weight).clamp(min=0)
        found: Tensor = (U * shrunk[:, None, :]) @ Vh
        return found

    @override
    def value(self, v: Tensor) -> Tensor:
        total: Tensor = torch.linalg.svdvals(v).sum(1)
        return self.weight * total


NONE = Term()

_MAX_NEWTON_STEPS = 50
"""Newton's method on the ball takes 4 to 8 steps; only non-finite values reach this limit."""

_MAPS = {"prox": "z0", "mirror": "z0", "prox_x": "x0", "prox_y": "y0"}
"""The maps of an oracle that belong to terms, and the initial point that each is applied to."""


def maps_of_terms(oracle: object) -> frozenset[str]:
    """Return the names of the oracle's maps that belong to a composite term or constraint.

    A map without a term returns its argument itself. A map that returns an equal copy counts as a
    term, because a large ball does not change the initial point either.
    """
    found = set()
    for name, start in _MAPS.items():
        apply, point = getattr(oracle, name, None), getattr(oracle, start, None)
        if apply is not None and point is not None and apply(point, 1.0) is not point:
            found.add(name)
    return frozenset(found)


def describe_terms(oracle: object) -> str:
    """Describe the oracle's terms for an error message, such as "L1(weight=0.1) on x and y"."""
    terms: tuple[Term, ...] = getattr(oracle, "_terms", ())
    players: dict[Term, list[str]] = {}
    named = list(zip(terms, "xy", strict=False))
    if all(term == NONE for term, _ in named):  # a problem of one variable
        named = [(getattr(oracle, "_term", NONE), "z")]
    for term, player in named:
        if term != NONE:
            players.setdefault(term, []).append(player)
    described = [f"{term} on {' and '.join(names)}" for term, names in players.items()]
    return ", ".join(described) or "a proximal map of its own"


class TwoPlayers:
    """A mix-in with the maps of an oracle whose players x and y have a term each.

    It comes before the oracle in the list of base classes.
    """

    _terms: tuple[Term, Term] = (NONE, NONE)
    _split: int
    """The number of variables that belong to x."""

    def prox_x(self, x: Tensor, step: StepSize) -> Tensor:
        """Apply the proximal map of the min player's term."""
        return self._terms[0].prox(x, step)

    def prox_y(self, y: Tensor, step: StepSize) -> Tensor:
        """Apply the proximal map of the max player's term."""
        return self._terms[1].prox(y, step)

    def prox(self, z: Tensor, step: float) -> Tensor:
        """Apply the proximal map of both terms."""
        if not self._has_terms:
            return z
        x, y = z[:, : self._split], z[:, self._split :]
        return torch.cat([self.prox_x(x, step), self.prox_y(y, step)], dim=1)

    def mirror(self, z: Tensor, weight: float) -> Tensor:
        """Map z from the dual to the primal space, with both terms multiplied by `weight`."""
        if not self._has_terms:
            return z
        x, y = z[:, : self._split], z[:, self._split :]
        first, second = self._terms
        return torch.cat([first.mirror(x, weight), second.mirror(y, weight)], dim=1)

    @property
    def _has_terms(self) -> bool:
        return self._terms != (NONE, NONE)
