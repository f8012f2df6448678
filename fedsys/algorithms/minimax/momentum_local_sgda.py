"""Momentum Local SGDA and its + form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.minimax.base import MinimaxAlgorithm, MinimaxState
from fedsys.algorithms.minimax.local_sgda_plus import SnapshotAlgorithm, split_grads
from fedsys.core.algorithm import fill_in
from fedsys.core.constants import Theory
from fedsys.core.oracles import Minimax
from fedsys.core.schedules import FromTheory, Rate, Schedule, at, highest, number
from fedsys.core.sync import Sync
from fedsys.theory import momentum_local_sgda


@dataclass(frozen=True)
class MomentumState(MinimaxState):
    """The players and their momenta."""

    dx: Tensor
    dy: Tensor


AnyMomentumState = TypeVar("AnyMomentumState", bound=MomentumState)


@dataclass(frozen=True)
class _Momentum(MinimaxAlgorithm[AnyMomentumState]):
    """The hyperparameters and the update of both forms."""

    alpha: Rate | FromTheory = 1.0
    beta: Rate = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_chance("alpha")
        self._require_positive("beta")
        if isinstance(self.alpha, FromTheory):
            constant = not isinstance(self.beta, Schedule)
            self._require(constant, "beta", "a number where alpha is theory")
        else:
            alpha = highest(self.alpha)
            rule = f"at most 1/alpha = {1 / alpha:.4g}"
            self._require(alpha * highest(self.beta) <= 1, "beta", rule)

    def _update(self, s: AnyMomentumState, oracle: Minimax, sync: Sync) -> tuple[Tensor, ...]:
        """Move, renew the momenta at the new point, and average all four."""
        alpha = at(self.alpha, oracle.step)
        x, y = self._move(s.x, s.y, s.dx, s.dy, oracle, alpha)
        gx, gy = self._grads(s, x, y, oracle)
        new = at(self.beta, oracle.step) * alpha
        return sync(x, y, (1 - new) * s.dx + new * gx, (1 - new) * s.dy + new * gy)

    def _grads(
        self, s: AnyMomentumState, x: Tensor, y: Tensor, oracle: Minimax
    ) -> tuple[Tensor, Tensor]:
        return oracle.grads(x, y, oracle.draw())

    @override
    def tuned(self, theory: Theory) -> Self:
        K = self.local_steps
        return fill_in(
            self, theory, alpha=lambda _: momentum_local_sgda.alpha(theory, K, number(self.beta))
        )


@dataclass(frozen=True)
class MomentumLocalSGDA(_Momentum[MomentumState]):
    """Momentum Local SGDA of Sharma, Panda, Joshi and Varshney (ICML 2022).

    Local SGDA along moving averages of the gradients, which are averaged too:

        x <- x - alpha lr_x dx,  y <- y + alpha lr_y dy
        dx <- (1 - beta alpha) dx + beta alpha grad_x f(x, y; xi),  dy likewise

    Theory: alpha = sqrt(n/T) for n clients and T steps, beta = 3.

    Args:
        lr_x: the step size of the min player, a number or a schedule.
        lr_y: the step size of the max player, a number or a schedule.
        alpha: in (0, 1], a number, a schedule or "theory".
        beta: beta alpha <= 1 is the weight of the new gradient; a number or a schedule.
        local_steps: K, the number of steps of a round.
    """

    full_participation: ClassVar[str | None] = None
    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")

    @override
    def init(self, oracle: Minimax, sync: Sync) -> MomentumState:
        dx, dy = oracle.grads(oracle.x0, oracle.y0, oracle.draw())
        return MomentumState(oracle.x0, oracle.y0, dx, dy)

    @override
    def step(self, s: MomentumState, oracle: Minimax, sync: Sync) -> MomentumState:
        return MomentumState(*self._update(s, oracle, sync))


@dataclass(frozen=True)
class MomentumSnapshotState(MomentumState):
    """And the snapshot of x at which y climbs."""

    snapshot: Tensor


@dataclass(frozen=True)
class MomentumLocalSGDAPlus(
    SnapshotAlgorithm[MomentumSnapshotState], _Momentum[MomentumSnapshotState]
):
    """Momentum Local SGDA+ of Sharma, Panda, Joshi and Varshney (ICML 2022).

    Momentum Local SGDA with grad_y at a snapshot of the averaged x, refreshed every S steps.

    Args:
        lr_x: the step size of the min player, a number or a schedule.
        lr_y: the step size of the max player, a number or a schedule.
        alpha: in (0, 1], a number, a schedule or "theory".
        beta: beta alpha <= 1 is the weight of the new gradient; a number or a schedule.
        snapshot_every: S in steps, a multiple of K; 0 for K^2.
        local_steps: K, the number of steps of a round.
    """

    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")

    @override
    def init(self, oracle: Minimax, sync: Sync) -> MomentumSnapshotState:
        dx, dy = oracle.grads(oracle.x0, oracle.y0, oracle.draw())
        return MomentumSnapshotState(oracle.x0, oracle.y0, dx, dy, oracle.x0)

    @override
    def step(self, s: MomentumSnapshotState, oracle: Minimax, sync: Sync) -> MomentumSnapshotState:
        x, y, dx, dy = self._update(s, oracle, sync)
        return MomentumSnapshotState(x, y, dx, dy, self._renewed(s.snapshot, x, oracle))

    def _grads(
        self, s: MomentumSnapshotState, x: Tensor, y: Tensor, oracle: Minimax
    ) -> tuple[Tensor, Tensor]:
        return split_grads(oracle, x, s.snapshot, y, oracle.draw())
