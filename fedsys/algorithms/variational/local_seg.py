"""Local SEG: extra-step local SGD."""

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
from fedsys.core.schedules import at
from fedsys.core.sync import Sync
from fedsys.theory import local_seg


@dataclass(frozen=True)
class LocalSEG(ExtrapolatingPointAlgorithm):
    """Extra Step Local SGD of Beznosikov, Samokhin and Gasnikov (2020).

        z' = z - lr F(z; xi),  z <- z - lr F(z'; xi');  only z is averaged, every K steps

    A baseline of Zhang et al. (ICLR 2024), arXiv:2306.05100, Figure 1. LESGD also averages the half
    point z' of the communication step. The evaluated mean is that of the half points.

    Theory: lr = 1 / (21 K L).

    Args:
        lr: the step size, a number, a schedule or "theory".
        local_steps: K, the number of steps of a round.
    """

    full_participation: ClassVar[str | None] = None
    term_maps: ClassVar[tuple[str, ...]] = ("prox",)
    stackable: ClassVar[tuple[str, ...] | None] = ("lr",)

    @override
    def step_and_point(
        self, s: PointState, oracle: Variational, sync: Sync
    ) -> tuple[PointState, Tensor]:
        lr = at(self.lr, oracle.step)
        half = oracle.prox(descend(s.z, oracle.operator(s.z, oracle.draw()), lr), lr)
        z = oracle.prox(descend(s.z, oracle.operator(half, oracle.draw()), lr), lr)
        return PointState(sync(z)), half

    @override
    def tuned(self, theory: Theory) -> Self:
        return fill_in(self, theory, lr=lambda c: local_seg.step(c.L, self.local_steps))
