"""Adaptive matrices of AdaFGDA: diagonals that the server computes from averaged estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedsys.errors import require


class DiagonalRule(Protocol):
    """A rule for one player's matrix; yours is a frozen dataclass with these two methods.

    The memory is a tensor [k, d] of what the rule keeps from one round to the next.
    """

    def start(self, w: Tensor) -> Tensor:
        """The memory before the first round; w [d] is an estimator, for its shape."""

    def update(self, memory: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The diagonal [d] of a round whose averaged estimator is w, and the memory after it."""


@dataclass(frozen=True)
class Identity:
    """A = I: what makes AdaFGDA equal to FGDA."""

    def start(self, w: Tensor) -> Tensor:
        """Nothing to remember."""
        return w.new_zeros(0, len(w))

    def update(self, memory: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Ones."""
        return torch.ones_like(w), memory


@dataclass(frozen=True)
class Adam:
    """a <- decay a + (1 - decay) w^2,  A = diag(sqrt(a) + floor); adafgda.txt, line 6.

    a changes once a round: between rounds there is no averaged estimator.

    Args:
        decay: the paper's varrho, the part of a that is kept from round to round.
        floor: the paper's rho. A small one adapts more, and is less stable near a solution.
    """

    decay: float = 0.9
    floor: float = 1.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(0 <= self.decay < 1, name, "decay", self.decay, "in [0, 1)")
        require(self.floor > 0, name, "floor", self.floor, "positive")

    def start(self, w: Tensor) -> Tensor:
        """a_0 = 0."""
        return w.new_zeros(1, len(w))

    def update(self, memory: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The moving average of squares."""
        a = self.decay * memory[0] + (1 - self.decay) * w.square()
        return a.sqrt() + self.floor, a[None]


@dataclass(frozen=True)
class AdaBelief(Adam):
    """a <- decay a + (1 - decay) (w - w of the round before)^2; adafgda.txt, Section 4."""

    def start(self, w: Tensor) -> Tensor:
        """a_0 = 0, and zero for the round before the first."""
        return w.new_zeros(2, len(w))

    def update(self, memory: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The moving average of squared changes, and this round's estimator."""
        a = self.decay * memory[0] + (1 - self.decay) * (w - memory[1]).square()
        return a.sqrt() + self.floor, torch.stack([a, w])
