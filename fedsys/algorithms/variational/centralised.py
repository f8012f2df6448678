"""Gradient descent-ascent and extra-gradient with communication in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.variational.base import PointState
from fedsys.algorithms.variational.lesgd import LESGD
from fedsys.algorithms.variational.lsgd import LSGD
from fedsys.core.algorithm import fill_in
from fedsys.core.arithmetic import descend
from fedsys.core.constants import Theory
from fedsys.core.oracles import Variational
from fedsys.core.schedules import at
from fedsys.core.sync import Sync
from fedsys.theory import federated_vi


@dataclass(frozen=True)
class GDA(LSGD):
    """Gradient descent-ascent on the mean operator; LSGD of Wang and Kale (2026), eq. (11), K = 1.

        z <- prox(z - lr F(z)),  F the mean over all clients

    A term or constraint is applied after the average: the mean of the clients' proximal points is
    another point where clients differ.

    Theory: lr = 1 / (2 ell) with ell the co-coercivity of the mean operator. No bound is given:
    Theorem 6 of LSGD is about another step size.

    Args:
        lr: the step size, a number, a schedule or "theory".
        local_steps: 1.
    """

    local_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.local_steps == 1, "local_steps", "1: it communicates every step")

    @override
    def step(self, s: PointState, oracle: Variational, sync: Sync) -> PointState:
        lr = at(self.lr, oracle.step)
        z = sync(descend(s.z, oracle.operator(s.z, oracle.draw()), lr))
        return PointState(oracle.prox(z, lr))

    @override
    def tuned(self, theory: Theory) -> Self:
        return fill_in(self, theory, lr=lambda c: federated_vi.gda_step(c.beta))

    @override
    def bound(self, theory: Theory) -> float | None:
        return None


@dataclass(frozen=True)
class EG(LESGD):
    """Extra-gradient (Korpelevich, 1976); LESGD of Wang and Kale (2026), eq. (4), with K = 1.

        z' = prox(z - lr F(z)),  z <- prox(z - lr F(z')),  prox as in GDA

    Theory: lr = 1 / (4 L). No bound is given: Theorems 1 and 2 of LESGD are about other step sizes.

    Args:
        lr: the step size, a number, a schedule or "theory".
        theorem: not used.
        local_steps: 1.
    """

    local_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.local_steps == 1, "local_steps", "1: it communicates every step")

    @override
    def step_and_point(
        self, s: PointState, oracle: Variational, sync: Sync
    ) -> tuple[PointState, Tensor]:
        lr = at(self.lr, oracle.step)
        x = oracle.prox(sync(descend(s.z, oracle.operator(s.z, oracle.draw()), lr)), lr)
        z = oracle.prox(sync(descend(s.z, oracle.operator(x, oracle.draw()), lr)), lr)
        return PointState(z), x

    @override
    def tuned(self, theory: Theory) -> Self:
        return fill_in(self, theory, lr=lambda c: federated_vi.eg_step(c.L))

    @override
    def bound(self, theory: Theory) -> float | None:
        return None
