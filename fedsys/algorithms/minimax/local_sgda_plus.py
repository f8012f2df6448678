"""Local SGDA+."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.minimax.base import AnyMinimaxState, MinimaxAlgorithm, MinimaxState
from fedsys.core.oracles import Draw, Minimax
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class SnapshotState(MinimaxState):
    """The players, and the snapshot of x at which y climbs."""

    snapshot: Tensor


@dataclass(frozen=True)
class SnapshotAlgorithm(MinimaxAlgorithm[AnyMinimaxState]):
    """The common part of the + algorithms: the ascent uses a snapshot of the averaged x.

    Args:
        snapshot_every: S in steps, a multiple of K; 0 for K^2.
    """

    snapshot_every: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = self.snapshot_every >= 0 and self.snapshot_every % self.local_steps == 0
        rule = f"0 or a multiple of local_steps={self.local_steps}"
        self._require(whole, "snapshot_every", rule)

    def _renewed(self, snapshot: Tensor, x: Tensor, oracle: Minimax) -> Tensor:
        """x every S steps, else the old snapshot."""
        period = self.snapshot_every or self.local_steps**2
        return x if (oracle.step + 1) % period == 0 else snapshot


def split_grads(
    oracle: Minimax, x: Tensor, snapshot: Tensor, y: Tensor, xi: Draw
) -> tuple[Tensor, Tensor]:
    """grad_x f(x, y; xi) and grad_y f(snapshot, y; xi)."""
    gx, _ = oracle.grads(x, y, xi)
    _, gy = oracle.grads(snapshot, y, xi)
    return gx, gy


@dataclass(frozen=True)
class LocalSGDAPlus(SnapshotAlgorithm[SnapshotState]):
    """Local SGDA+ of Deng and Mahdavi (AISTATS 2021); Sharma et al. (ICML 2022).

    Local SGDA whose ascent uses a snapshot x~ of the averaged x, refreshed every S steps.

        x_i <- x_i - lr_x grad_x f_i(x_i, y_i; xi),   y_i <- y_i + lr_y grad_y f_i(x~, y_i; xi)

    Args:
        lr_x: the step size of the min player, a number or a schedule.
        lr_y: the step size of the max player, a number or a schedule.
        snapshot_every: S in steps, a multiple of K; 0 for K^2.
        local_steps: K, the number of steps of a round.
    """

    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")

    @override
    def init(self, oracle: Minimax, sync: Sync) -> SnapshotState:
        return SnapshotState(oracle.x0, oracle.y0, oracle.x0)

    @override
    def step(self, s: SnapshotState, oracle: Minimax, sync: Sync) -> SnapshotState:
        gx, gy = split_grads(oracle, s.x, s.snapshot, s.y, oracle.draw())
        x, y = self._move(s.x, s.y, gx, gy, oracle)
        x, y = sync(x, y)
        return SnapshotState(x, y, self._renewed(s.snapshot, x, oracle))
