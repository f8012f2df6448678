"""Local SGDA (Deng and Mahdavi, AISTATS 2021; baseline of adafgda.txt and proxskip-vip.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from fedsys.algorithms.minimax import MinimaxAlgorithm, MinimaxState
from fedsys.algorithms.rates import THEORY, Decreasing, Rate
from fedsys.communication import Sync
from fedsys.problems import Constants, Minimax, Theory


@dataclass(frozen=True)
class LocalSGDA(MinimaxAlgorithm[MinimaxState]):
    """Simultaneous descent and ascent on each client, averaged every K steps.

        x_i <- x_i - lr_x grad_x f_i(x_i, y_i; xi),    y_i <- y_i + lr_y grad_y f_i(x_i, y_i; xi)

    Theory (for strong monotonicity): lr_t = 8 / (mu (t + a)), a = 2048 K (L/mu)^2.

    Args:
        lr_x: the step of the min player, or "theory".
        lr_y: the step of the max player, or "theory".
        local_steps: K, the steps of a round.
    """

    lr_x: Rate = THEORY
    lr_y: Rate = THEORY

    needs_all_clients: ClassVar[str] = ""

    def init(self, oracle: Minimax, sync: Sync) -> MinimaxState:
        """All clients start from the same point."""
        return MinimaxState(oracle.x0, oracle.y0)

    def step(self, s: MinimaxState, oracle: Minimax, sync: Sync) -> MinimaxState:
        """One step of both players at the old point, with the same sample."""
        gx, gy = oracle.grads(s.x, s.y, oracle.draw())
        x, y = self._move(s.x, s.y, gx, gy, oracle)
        x, y = sync(x, y)
        return MinimaxState(x, y)

    def tuned(self, theory: Theory) -> Self:
        """The decreasing step."""

        def decreasing(c: Constants) -> Rate:
            return Decreasing(8 / c.mu, 2048 * self.local_steps * (c.L / c.mu) ** 2)

        return self.fill(theory, lr_x=decreasing, lr_y=decreasing)
