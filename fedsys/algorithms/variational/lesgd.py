"""LESGD: local extra-SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.variational.base import ExtrapolatingPointAlgorithm, PointState
from fedsys.core.algorithm import fill_in
from fedsys.core.arithmetic import descend
from fedsys.core.constants import Theory
from fedsys.core.oracles import Variational
from fedsys.core.schedules import at, number
from fedsys.core.sync import Sync
from fedsys.theory import federated_vi


@dataclass(frozen=True)
class LESGD(ExtrapolatingPointAlgorithm):
    """LESGD of Wang and Kale (2026), arXiv:2602.09164, eq. (4) and Appendix H.

        x_t = z_{t-1} - lr V(z_{t-1}; xi),  z_t = z_{t-1} - lr V(x_t; xi')

    On a communication step x_t is averaged, every client evaluates at the common x_t, and then z_t
    is averaged: two exchanges. The evaluated mean is that of the x_t.

    Theory: Theorem 1; Theorem 2 for an affine operator; Theorem 24 for clients that differ.

    Args:
        lr: the step size, a number, a schedule or "theory".
        theorem: 1, 2, 24, or 0 for the one that fits the problem.
        local_steps: K, the number of steps of a round.
    """

    theorem: int = 0

    full_participation: ClassVar[str | None] = None
    term_maps: ClassVar[tuple[str, ...]] = ("prox",)
    stackable: ClassVar[tuple[str, ...] | None] = ("lr",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.theorem in (0, 1, 2, 24), "theorem", "one of 0 (choose), 1, 2, 24")

    @override
    def step_and_point(
        self, s: PointState, oracle: Variational, sync: Sync
    ) -> tuple[PointState, Tensor]:
        lr = at(self.lr, oracle.step)
        x = sync(oracle.prox(descend(s.z, oracle.operator(s.z, oracle.draw()), lr), lr))
        z = sync(oracle.prox(descend(s.z, oracle.operator(x, oracle.draw()), lr), lr))
        return PointState(z), x

    @override
    def tuned(self, theory: Theory) -> Self:
        theorem = self.theorem or federated_vi.lesgd_theorem(theory)
        K = self.local_steps
        return fill_in(self, theory, lr=lambda _: federated_vi.lesgd_step(theory, K, theorem))

    @override
    def bound(self, theory: Theory) -> float | None:
        if theory.terms or not theory.covers(self.local_steps, "lr"):
            return None
        theorem = self.theorem or federated_vi.lesgd_theorem(theory)
        return federated_vi.lesgd_bound(theory, self.local_steps, theorem, number(self.lr))
