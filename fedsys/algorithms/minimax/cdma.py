"""CDMA."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.minimax.base import MinimaxAlgorithm, MinimaxState
from fedsys.core.oracles import Minimax
from fedsys.core.schedules import Rate, at
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class CDMAState(MinimaxState):
    """The players, the round's start (x_r, y_r) and the estimate (u, v) of the mean gradient."""

    x_r: Tensor
    y_r: Tensor
    u: Tensor
    v: Tensor


@dataclass(frozen=True)
class CDMA(MinimaxAlgorithm[CDMAState]):
    """CDMA-ADA of Xie, Zhang, Shen, Liu and Qian (AAAI 2023).

    Local steps along grad f_i(z_i; xi) - grad f_i(z_r; xi) + u, with c_r times the step sizes:

        u_r = mean[grad f_i(z_r) - (1 - a_r) grad f_i(z_{r-1})] + (1 - a_r) u_{r-1}
        c_r = (r + 1)^-power,   a_r = min(a0 c_r^2, 1)

    a0 = 1 and power = 0 give CDMA-ONE. The gradients of u are on all local data,
    as in the paper, or on a sample. On all local data u_r is the mean gradient whatever a_r is,
    because every client takes part in every round; in the paper only some do.

    A round has two exchanges: the points, then the gradients at the new common point.

    Args:
        lr_x: the step size of the min player, a number or a schedule.
        lr_y: the step size of the max player, a number or a schedule.
        power: how the steps decrease with the rounds.
        a0: the weight of the new gradients in u, a number or a schedule.
        gradients: of u, "full" or "sample".
        local_steps: K, the number of steps of a round.
    """

    power: float = 0.2
    a0: Rate = 5.0
    gradients: str = "full"

    full_participation: ClassVar[str | None] = "control variates of absent clients go stale"
    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("a0")
        self._require(self.power >= 0, "power", "at least 0")
        self._require(self.gradients in ("full", "sample"), "gradients", "full or sample")

    @property
    @override
    def needs_full_operator(self) -> bool:
        return self.gradients == "full"

    @override
    def init(self, oracle: Minimax, sync: Sync) -> CDMAState:
        x, y = oracle.x0, oracle.y0
        full = self.needs_full_operator
        grads = oracle.full_grads(x, y) if full else oracle.grads(x, y, oracle.draw())
        return CDMAState(x, y, x, y, *sync(*grads))

    @override
    def step(self, s: CDMAState, oracle: Minimax, sync: Sync) -> CDMAState:
        r = oracle.step // self.local_steps
        xi = oracle.draw()
        gx, gy = oracle.grads(s.x, s.y, xi)
        own_x, own_y = oracle.grads(s.x_r, s.y_r, xi)
        x, y = self._move(s.x, s.y, gx - own_x + s.u, gy - own_y + s.v, oracle, self._decay(r))
        if not sync:
            return replace(s, x=x, y=y)
        x, y = sync(x, y)
        return CDMAState(x, y, x, y, *self._estimate(s, x, y, r + 1, oracle, sync))

    def _estimate(
        self, s: CDMAState, x: Tensor, y: Tensor, r: int, oracle: Minimax, sync: Sync
    ) -> tuple[Tensor, ...]:
        """u_r and v_r at the new common point."""
        if self.needs_full_operator:
            return sync(*oracle.full_grads(x, y))  # what the recursion gives, by induction
        kept = 1 - min(at(self.a0, oracle.step) * self._decay(r) ** 2, 1.0)
        xi = oracle.draw()
        gx, gy = oracle.grads(x, y, xi)
        own_x, own_y = oracle.grads(s.x_r, s.y_r, xi)
        u, v = sync(gx - kept * own_x, gy - kept * own_y)
        return u + kept * s.u, v + kept * s.v

    def _decay(self, r: int) -> float:
        return float((r + 1) ** -self.power)
