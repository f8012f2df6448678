"""Local SGDA+ (Deng and Mahdavi, AISTATS 2021; Sharma et al., ICML 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsys.algorithms.minimax import AnyMinimaxState, MinimaxAlgorithm, MinimaxState
from fedsys.communication import Sync
from fedsys.problems import Draw, Minimax


@dataclass(frozen=True)
class SnapshotState(MinimaxState):
    """The players, and the snapshot of x at which y climbs."""

    snapshot: Tensor


@dataclass(frozen=True)
class SnapshotAlgorithm(MinimaxAlgorithm[AnyMinimaxState]):
    """What the + methods share: the ascent uses a snapshot of the averaged x.

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
    """Local SGDA whose ascent uses a snapshot x~ of the averaged x, refreshed every S steps.

        x_i <- x_i - lr_x grad_x f_i(x_i, y_i; xi),   y_i <- y_i + lr_y grad_y f_i(x~, y_i; xi)

    Args:
        lr_x: the step of the min player.
        lr_y: the step of the max player.
        snapshot_every: S in steps, a multiple of K; 0 for K^2.
        local_steps: K, the steps of a round.
    """

    def init(self, oracle: Minimax, sync: Sync) -> SnapshotState:
        """The first snapshot is the start."""
        return SnapshotState(oracle.x0, oracle.y0, oracle.x0)

    def step(self, s: SnapshotState, oracle: Minimax, sync: Sync) -> SnapshotState:
        """One sample for both players."""
        gx, gy = split_grads(oracle, s.x, s.snapshot, s.y, oracle.draw())
        x, y = self._move(s.x, s.y, gx, gy, oracle)
        x, y = sync(x, y)
        return SnapshotState(x, y, self._renewed(s.snapshot, x, oracle))
