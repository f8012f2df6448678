"""FEDNEST in its min-max form (Tarzanagh, Li, Thrampoulidis, Oymak, ICML 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsys.algorithms.minimax import MinimaxAlgorithm, MinimaxState
from fedsys.algorithms.rates import rate_at
from fedsys.communication import Every, Schedule, Sync
from fedsys.problems import Minimax


@dataclass(frozen=True)
class FedNest(MinimaxAlgorithm[MinimaxState]):
    """A step is an outer iteration: T times FEDINN on y, then FEDOUT on x; 2 T + 2 exchanges.

        y_i <- y_i + lr_y (grad_y f_i(x, y_i; xi) - grad_y f_i(x, y; xi) + mean grad_y f_i(x, y))

    K times from the common y, then averaged; and downwards in x likewise, at the new y. The means
    are of gradients on all local data, or of a sample where that would take too long.

    Args:
        lr_x: alpha, the step of FEDOUT.
        lr_y: beta, the step of FEDINN.
        inner_rounds: T.
        gradients: of the means, "full" or "sample".
        local_steps: K, the local steps for x and for y.
    """

    inner_rounds: int = 1
    gradients: str = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.inner_rounds >= 1, "inner_rounds", "at least 1")
        self._require(self.gradients in ("full", "sample"), "gradients", "full or sample")

    @property
    def schedule(self) -> Schedule:
        """Every step communicates."""
        return Every(1)

    def init(self, oracle: Minimax, sync: Sync) -> MinimaxState:
        """All clients start from the same point."""
        return MinimaxState(oracle.x0, oracle.y0)

    def step(self, s: MinimaxState, oracle: Minimax, sync: Sync) -> MinimaxState:
        """One outer iteration."""
        y = s.y
        for _ in range(self.inner_rounds):
            y = self._inner(s.x, y, oracle, sync)
        return MinimaxState(self._outer(s.x, y, oracle, sync), y)

    def _inner(self, x: Tensor, y: Tensor, oracle: Minimax, sync: Sync) -> Tensor:
        """FEDINN: K corrected steps up from a common y."""
        lr, mean, y_i = rate_at(self.lr_y, oracle.step), sync(self._grads(x, y, oracle)[1]), y
        for _ in range(self.local_steps):
            xi = oracle.draw()
            change = oracle.grads(x, y_i, xi)[1] - oracle.grads(x, y, xi)[1]
            y_i = oracle.prox_y(y_i + lr * (change + mean), lr)
        return sync(y_i)

    def _outer(self, x: Tensor, y: Tensor, oracle: Minimax, sync: Sync) -> Tensor:
        """FEDOUT: K corrected steps down from a common x."""
        lr, mean, x_i = rate_at(self.lr_x, oracle.step), sync(self._grads(x, y, oracle)[0]), x
        for _ in range(self.local_steps):
            xi = oracle.draw()
            change = oracle.grads(x_i, y, xi)[0] - oracle.grads(x, y, xi)[0]
            x_i = oracle.prox_x(x_i - lr * (change + mean), lr)
        return sync(x_i)

    def _grads(self, x: Tensor, y: Tensor, oracle: Minimax) -> tuple[Tensor, Tensor]:
        """What the corrections are made of, at the common point."""
        full = self.gradients == "full"
        return oracle.full_grads(x, y) if full else oracle.grads(x, y, oracle.draw())
