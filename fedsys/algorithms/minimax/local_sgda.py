"""Local SGDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from typing_extensions import override

from fedsys.algorithms.minimax.base import MinimaxAlgorithm, MinimaxState
from fedsys.core.algorithm import fill_in
from fedsys.core.constants import Theory
from fedsys.core.oracles import Minimax
from fedsys.core.schedules import FromTheory, Rate
from fedsys.core.sync import Sync
from fedsys.theory import local_sgda


@dataclass(frozen=True)
class LocalSGDA(MinimaxAlgorithm[MinimaxState]):
    """Local SGDA of Deng and Mahdavi (AISTATS 2021).

        x_i <- x_i - lr_x grad_x f_i(x_i, y_i; xi),    y_i <- y_i + lr_y grad_y f_i(x_i, y_i; xi)

    Both players step from the old point, with the same sample; x and y are averaged every K steps.
    A baseline of Huang et al. (AISTATS 2024), arXiv:2211.07303, and of Zhang et al. (ICLR 2024),
    arXiv:2306.05100.

    Theory (for strong monotonicity): lr_t = 8 / (mu (t + a)), a = 2048 K (L/mu)^2.

    Args:
        lr_x: the step size of the min player, a number, a schedule or "theory".
        lr_y: the step size of the max player, a number, a schedule or "theory".
        local_steps: K, the number of steps of a round.
    """

    lr_x: Rate | FromTheory = 1.0  # type: ignore[assignment]
    lr_y: Rate | FromTheory = 0.1  # type: ignore[assignment]

    full_participation: ClassVar[str | None] = None
    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")
    stackable: ClassVar[tuple[str, ...] | None] = ("lr_x", "lr_y")

    @override
    def init(self, oracle: Minimax, sync: Sync) -> MinimaxState:
        return MinimaxState(oracle.x0, oracle.y0)

    @override
    def step(self, s: MinimaxState, oracle: Minimax, sync: Sync) -> MinimaxState:
        gx, gy = oracle.grads(s.x, s.y, oracle.draw())
        x, y = self._move(s.x, s.y, gx, gy, oracle)
        x, y = sync(x, y)
        return MinimaxState(x, y)

    @override
    def tuned(self, theory: Theory) -> Self:
        K = self.local_steps
        return fill_in(
            self, theory, lr_x=lambda c: local_sgda.step(c, K), lr_y=lambda c: local_sgda.step(c, K)
        )
