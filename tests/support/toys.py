"""Two small algorithms that use shared coins and the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import Algorithm, State
from fedsys.core.oracles import Variational
from fedsys.core.periodic import PeriodicAlgorithm
from fedsys.core.rounds import Coins, CommunicationSchedule
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class PointAndMemory(State):
    """A point and an operator value."""

    z: Tensor
    h: Tensor


@dataclass(frozen=True)
class CoinToy(Algorithm[Variational, PointAndMemory]):
    """Averages if one coin shows heads, and refreshes its stored operator if another one does."""

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
    @override
    def schedule(self) -> CommunicationSchedule:
        return Coins(self.p, {"refresh": self.q})

    @override
    def init(self, oracle: Variational, sync: Sync) -> PointAndMemory:
        return PointAndMemory(oracle.z0, sync(oracle.full_operator(oracle.z0)))

    @override
    def step(self, s: PointAndMemory, oracle: Variational, sync: Sync) -> PointAndMemory:
        F = oracle.operator(s.z, oracle.draw())
        z = sync(s.z - self.lr * (F + s.h) / 2)
        return PointAndMemory(z, F if sync.coin("refresh") else s.h)

    @override
    def solution(self, s: PointAndMemory) -> Tensor:
        return s.z


@dataclass(frozen=True)
class PointAndMatrix(State):
    """A point, a diagonal matrix, and the largest step length over the clients."""

    z: Tensor
    A: Tensor
    reach: Tensor


@dataclass(frozen=True)
class ServerToy(PeriodicAlgorithm[Variational, PointAndMatrix]):
    """The server computes a diagonal matrix from the mean operator and sends it with the point."""

    lr: float = 0.1

    kind: ClassVar[str] = "variational"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.lr > 0, "lr", "positive")

    @override
    def init(self, oracle: Variational, sync: Sync) -> PointAndMatrix:
        (A,) = sync.server(_diagonal, oracle.full_operator(oracle.z0))
        return PointAndMatrix(oracle.z0, A, torch.zeros_like(A[:, 0]))

    @override
    def step(self, s: PointAndMatrix, oracle: Variational, sync: Sync) -> PointAndMatrix:
        F = oracle.operator(s.z, oracle.draw())
        z, A, reach = s.z - self.lr * F / s.A, s.A, s.reach
        if sync:
            reach = sync.gather((z - s.z).norm(dim=1)).max().expand(len(z))
            z, A = sync.server(_point_and_diagonal, z, F)
        return PointAndMatrix(z, A, reach)

    @override
    def solution(self, s: PointAndMatrix) -> Tensor:
        return s.z


def _diagonal(F: Tensor) -> Tensor:
    return F.square().sqrt() + 1


def _point_and_diagonal(z: Tensor, F: Tensor) -> tuple[Tensor, Tensor]:
    return z, _diagonal(F)
