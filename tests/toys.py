"""Two small algorithms that use what the first real ones do not: shared coins, and the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsys.algorithms import Algorithm, PeriodicAlgorithm, State
from fedsys.communication import Coins, Schedule, Sync
from fedsys.problems import Variational


@dataclass(frozen=True)
class PointAndMemory(State):
    """A point and one more vector."""

    z: Tensor
    h: Tensor


@dataclass(frozen=True)
class CoinToy(Algorithm[Variational, PointAndMemory]):
    """Averages when one coin says so, and refreshes its memory when another one does."""

    lr: float = 0.1
    p: float = 0.3
    q: float = 0.5

    kind: ClassVar[str] = "variational"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.lr > 0, "lr", "positive")
        self._require(0 < self.p <= 1, "p", "in (0, 1]")
        self._require(0 < self.q <= 1, "q", "in (0, 1]")

    @property
    def schedule(self) -> Schedule:
        """Two coins."""
        return Coins(self.p, {"refresh": self.q})

    def init(self, oracle: Variational, sync: Sync) -> PointAndMemory:
        """The mean operator at the start."""
        return PointAndMemory(oracle.z0, sync(oracle.full_operator(oracle.z0)))

    def step(self, s: PointAndMemory, oracle: Variational, sync: Sync) -> PointAndMemory:
        """A step along the mean of the operator and its memory."""
        F = oracle.operator(s.z, oracle.draw())
        z = sync(s.z - self.lr * (F + s.h) / 2)
        return PointAndMemory(z, F if sync.coin("refresh") else s.h)

    def solution(self, s: PointAndMemory) -> Tensor:
        """z."""
        return s.z


@dataclass(frozen=True)
class PointAndMatrix(State):
    """A point, its diagonal matrix, and how far the farthest client is: one number each."""

    z: Tensor
    A: Tensor
    reach: Tensor


@dataclass(frozen=True)
class ServerToy(PeriodicAlgorithm[Variational, PointAndMatrix]):
    """The server makes a diagonal matrix from the mean operator, and sends it with the point."""

    lr: float = 0.1

    kind: ClassVar[str] = "variational"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.lr > 0, "lr", "positive")

    def init(self, oracle: Variational, sync: Sync) -> PointAndMatrix:
        """The first matrix, before the first step."""
        (A,) = sync.server(_diagonal, oracle.full_operator(oracle.z0))
        return PointAndMatrix(oracle.z0, A, torch.zeros_like(A[:, 0]))

    def step(self, s: PointAndMatrix, oracle: Variational, sync: Sync) -> PointAndMatrix:
        """A scaled step; on a communication step also the lengths of all clients' steps."""
        F = oracle.operator(s.z, oracle.draw())
        z, A, reach = s.z - self.lr * F / s.A, s.A, s.reach
        if sync:
            reach = sync.gather((z - s.z).norm(dim=1)).max().expand(len(z))
            z, A = sync.server(_point_and_diagonal, z, F)
        return PointAndMatrix(z, A, reach)

    def solution(self, s: PointAndMatrix) -> Tensor:
        """z."""
        return s.z


def _diagonal(F: Tensor) -> Tensor:
    return F.square().sqrt() + 1


def _point_and_diagonal(z: Tensor, F: Tensor) -> tuple[Tensor, Tensor]:
    return z, _diagonal(F)
