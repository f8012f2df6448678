"""Adaptive matrices of AdaFGDA: diagonals that the server computes from averaged estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedsys.core.errors import require
from fedsys.core.fields import Checked


class DiagonalRule(Protocol):
    """A rule for one player's matrix; yours is a frozen dataclass with these three methods.

    The memory is a tensor [k, d] of what the rule keeps from one round to the next. Only the server
    calls `remember` and `diagonal`; it broadcasts the memory together with the diagonal.
    """

    def start(self, w: Tensor) -> Tensor:
        """The memory before the first round; w [d] is an estimator, for its shape."""

    def remember(self, memory: Tensor, w: Tensor) -> Tensor:
        """The memory after a round whose averaged estimator is w."""

    def diagonal(self, memory: Tensor) -> Tensor:
        """The matrix [d] that belongs to a memory."""


@runtime_checkable
class BoundedRule(Protocol):
    """A rule with known bounds of its matrix, which step sizes of the theory need."""

    def bounds(self, gradient: float) -> tuple[float, float]:
        """The smallest and the largest entry of the matrix, for w of at most this norm."""


@dataclass(frozen=True)
class Identity:
    """A = I: what makes AdaFGDA equal to FGDA."""

    def start(self, w: Tensor) -> Tensor:
        """The identity has no memory."""
        return w.new_zeros(0, len(w))

    def remember(self, memory: Tensor, w: Tensor) -> Tensor:
        """Still nothing."""
        return memory

    def diagonal(self, memory: Tensor) -> Tensor:
        """Ones."""
        return memory.new_ones(memory.shape[1])

    def bounds(self, gradient: float) -> tuple[float, float]:
        """The smallest and the largest entry of the matrix."""
        return 1.0, 1.0


@dataclass(frozen=True)
class Adam(Checked):
    """a <- decay a + (1 - decay) w^2,  A = diag(sqrt(a) + floor).

    Line 6 of Algorithm 1 of Huang et al. (AISTATS 2024), arXiv:2211.07303.

    a changes once a round: between rounds there is no averaged estimator.

    Args:
        decay: the paper's varrho, the part of a that is kept from round to round.
        floor: the paper's rho. A small one adapts more, and is less stable near a solution.
    """

    decay: float = 0.9
    floor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        require(0 <= self.decay < 1, name, "decay", self.decay, "in [0, 1)")
        require(self.floor > 0, name, "floor", self.floor, "positive")

    def start(self, w: Tensor) -> Tensor:
        """a_0 = 0."""
        return w.new_zeros(1, len(w))

    def remember(self, memory: Tensor, w: Tensor) -> Tensor:
        """The moving average of squares."""
        return self._average(memory[0], w)[None]

    def diagonal(self, memory: Tensor) -> Tensor:
        """sqrt(a) + floor."""
        return memory[0].sqrt() + self.floor

    def bounds(self, gradient: float) -> tuple[float, float]:
        """The smallest and the largest entry of the matrix, for w of at most this norm."""
        return self.floor, self.floor + gradient

    def _average(self, a: Tensor, w: Tensor) -> Tensor:
        return self.decay * a + (1 - self.decay) * w.square()


@dataclass(frozen=True)
class AdaBelief(Adam):
    """a <- decay a + (1 - decay) (w - w of the round before)^2; Huang et al., Section 4."""

    def start(self, w: Tensor) -> Tensor:
        """a_0 = 0, and zero for the round before the first."""
        return w.new_zeros(2, len(w))

    def remember(self, memory: Tensor, w: Tensor) -> Tensor:
        """The moving average of squared changes, and this round's estimator."""
        return torch.stack([self._average(memory[0], w - memory[1]), w])

    def bounds(self, gradient: float) -> tuple[float, float]:
        """The same; two estimators differ by at most twice their norm."""
        return self.floor, self.floor + 2 * gradient
