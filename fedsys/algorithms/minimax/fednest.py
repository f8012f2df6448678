"""FEDNEST in its min-max form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.minimax.base import MinimaxAlgorithm, MinimaxState
from fedsys.core.oracles import Minimax
from fedsys.core.rounds import CommunicationSchedule, Every
from fedsys.core.schedules import at
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class FedNest(MinimaxAlgorithm[MinimaxState]):
    """FEDNEST of Tarzanagh, Li, Thrampoulidis and Oymak (ICML 2022), for min-max.

    A step is an outer iteration: T times FEDINN on y, then FEDOUT on x; 2 T + 2 exchanges.

        y_i <- y_i + lr_y (grad_y f_i(x, y_i; xi) - grad_y f_i(x, y; xi) + mean grad_y f_i(x, y))

    K times from the common y, then averaged; and downwards in x likewise, at the new y. The means
    are of gradients on all local data, or of a sample where that would take too long.

    Args:
        lr_x: alpha, the step size of FEDOUT, a number or a schedule.
        lr_y: beta, the step size of FEDINN, a number or a schedule.
        inner_rounds: T.
        gradients: of the means, "full" or "sample".
        local_steps: K, the local steps for x and for y.
    """

    inner_rounds: int = 1
    gradients: str = "full"

    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.inner_rounds >= 1, "inner_rounds", "at least 1")
        self._require(self.gradients in ("full", "sample"), "gradients", "full or sample")

    @property
    @override
    def needs_full_operator(self) -> bool:
        return self.gradients == "full"

    @property
    @override
    def schedule(self) -> CommunicationSchedule:
        return Every(1)

    @override
    def init(self, oracle: Minimax, sync: Sync) -> MinimaxState:
        return MinimaxState(oracle.x0, oracle.y0)

    @override
    def step(self, s: MinimaxState, oracle: Minimax, sync: Sync) -> MinimaxState:
        y = s.y
        for _ in range(self.inner_rounds):
            y = self._inner(s.x, y, oracle, sync)
        return MinimaxState(self._outer(s.x, y, oracle, sync), y)

    def _inner(self, x: Tensor, y: Tensor, oracle: Minimax, sync: Sync) -> Tensor:
        """FEDINN: K corrected steps up from a common y."""
        lr, mean, y_i = at(self.lr_y, oracle.step), sync(self._grads(x, y, oracle)[1]), y
        for _ in range(self.local_steps):
            xi = oracle.draw()
            change = oracle.grads(x, y_i, xi)[1] - oracle.grads(x, y, xi)[1]
            y_i = oracle.prox_y(y_i + lr * (change + mean), lr)
        return sync(y_i)

    def _outer(self, x: Tensor, y: Tensor, oracle: Minimax, sync: Sync) -> Tensor:
        """FEDOUT: K corrected steps down from a common x."""
        lr, mean, x_i = at(self.lr_x, oracle.step), sync(self._grads(x, y, oracle)[0]), x
        for _ in range(self.local_steps):
            xi = oracle.draw()
            change = oracle.grads(x_i, y, xi)[0] - oracle.grads(x, y, xi)[0]
            x_i = oracle.prox_x(x_i - lr * (change + mean), lr)
        return sync(x_i)

    def _grads(self, x: Tensor, y: Tensor, oracle: Minimax) -> tuple[Tensor, Tensor]:
        """Return the gradients at the common point, from which the corrections are computed."""
        if self.needs_full_operator:
            return oracle.full_grads(x, y)
        return oracle.grads(x, y, oracle.draw())
