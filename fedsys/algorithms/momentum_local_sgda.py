"""Momentum Local SGDA and its + form (Sharma, Panda, Joshi, Varshney, ICML 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Self, TypeVar

from torch import Tensor

from fedsys.algorithms.local_sgda_plus import SnapshotAlgorithm, split_grads
from fedsys.algorithms.minimax import MinimaxAlgorithm, MinimaxState
from fedsys.algorithms.rates import THEORY
from fedsys.communication import Sync
from fedsys.problems import Minimax, Theory


@dataclass(frozen=True)
class MomentumState(MinimaxState):
    """The players and their momenta."""

    dx: Tensor
    dy: Tensor


AnyMomentumState = TypeVar("AnyMomentumState", bound=MomentumState)


@dataclass(frozen=True)
class _Momentum(MinimaxAlgorithm[AnyMomentumState]):
    """The hyperparameters and the update of both forms."""

    alpha: float = THEORY
    beta: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_chance("alpha")
        self._require_positive("beta")
        if not self._awaits_theory("alpha"):
            rule = f"at most 1/alpha = {1 / self.alpha:.4g}"
            self._require(self.alpha * self.beta <= 1, "beta", rule)

    def _update(self, s: AnyMomentumState, oracle: Minimax, sync: Sync) -> tuple[Tensor, ...]:
        """Move, renew the momenta at the new point, and average all four."""
        x, y = self._move(s.x, s.y, s.dx, s.dy, oracle, self.alpha)
        gx, gy = self._grads(s, x, y, oracle)
        new = self.beta * self.alpha
        return sync(x, y, (1 - new) * s.dx + new * gx, (1 - new) * s.dy + new * gy)

    def _grads(
        self, s: AnyMomentumState, x: Tensor, y: Tensor, oracle: Minimax
    ) -> tuple[Tensor, Tensor]:
        return oracle.grads(x, y, oracle.draw())

    def tuned(self, theory: Theory) -> Self:
        """alpha = sqrt(n/T), as far as beta alpha <= 1 allows."""
        rounds, clients = theory.size(self.local_steps)
        decaying = sqrt(clients / (rounds * self.local_steps))
        return self.fill(theory, alpha=lambda _: min(decaying, 1.0, 1 / self.beta))


@dataclass(frozen=True)
class MomentumLocalSGDA(_Momentum[MomentumState]):
    """Local SGDA along moving averages of the gradients, which are averaged too.

        x <- x - alpha lr_x dx,  y <- y + alpha lr_y dy
        dx <- (1 - beta alpha) dx + beta alpha grad_x f(x, y; xi),  dy likewise

    Theory: alpha = sqrt(n/T) for n clients and T steps, beta = 3.

    Args:
        lr_x: the step of the min player.
        lr_y: the step of the max player.
        alpha: in (0, 1], or "theory".
        beta: with alpha, the weight of the new gradient: beta alpha <= 1.
        local_steps: K, the steps of a round.
    """

    needs_all_clients: ClassVar[str] = ""

    def init(self, oracle: Minimax, sync: Sync) -> MomentumState:
        """The first momenta are plain gradients."""
        dx, dy = oracle.grads(oracle.x0, oracle.y0, oracle.draw())
        return MomentumState(oracle.x0, oracle.y0, dx, dy)

    def step(self, s: MomentumState, oracle: Minimax, sync: Sync) -> MomentumState:
        """Both gradients at the new point."""
        return MomentumState(*self._update(s, oracle, sync))


@dataclass(frozen=True)
class MomentumSnapshotState(MomentumState):
    """And the snapshot of x at which y climbs."""

    snapshot: Tensor


@dataclass(frozen=True)
class MomentumLocalSGDAPlus(
    SnapshotAlgorithm[MomentumSnapshotState], _Momentum[MomentumSnapshotState]
):
    """Momentum Local SGDA with grad_y at a snapshot of the averaged x, refreshed every S steps.

    Args:
        lr_x: the step of the min player.
        lr_y: the step of the max player.
        alpha: in (0, 1], or "theory".
        beta: with alpha, the weight of the new gradient: beta alpha <= 1.
        snapshot_every: S in steps, a multiple of K; 0 for K^2.
        local_steps: K, the steps of a round.
    """

    def init(self, oracle: Minimax, sync: Sync) -> MomentumSnapshotState:
        """The first snapshot is the start."""
        dx, dy = oracle.grads(oracle.x0, oracle.y0, oracle.draw())
        return MomentumSnapshotState(oracle.x0, oracle.y0, dx, dy, oracle.x0)

    def step(self, s: MomentumSnapshotState, oracle: Minimax, sync: Sync) -> MomentumSnapshotState:
        """grad_x at the new point, grad_y at the snapshot."""
        x, y, dx, dy = self._update(s, oracle, sync)
        return MomentumSnapshotState(x, y, dx, dy, self._renewed(s.snapshot, x, oracle))

    def _grads(
        self, s: MomentumSnapshotState, x: Tensor, y: Tensor, oracle: Minimax
    ) -> tuple[Tensor, Tensor]:
        return split_grads(oracle, x, s.snapshot, y, oracle.draw())
