"""FedGDA-GT: gradient tracking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.variational.base import VariationalAlgorithm
from fedsys.core.algorithm import State, fill_in
from fedsys.core.constants import Theory
from fedsys.core.oracles import Variational
from fedsys.core.schedules import at
from fedsys.core.sync import Sync
from fedsys.theory import fedgda_gt


@dataclass(frozen=True)
class TrackingState(State):
    """The point z, and the correction mean(F(z_r)) - F_i(z_r) of the round's start z_r."""

    z: Tensor
    correction: Tensor


@dataclass(frozen=True)
class FedGDAGT(VariationalAlgorithm[TrackingState]):
    """FedGDA-GT of Sun and Wei (NeurIPS 2022).

        z_i <- prox(z_i - lr (F_i(z_i) - F_i(z_r) + mean F(z_r))),  averaged every K steps

    A baseline of Zhang et al. (ICLR 2024), arXiv:2306.05100, Figure 1. Operators are full. A round
    has two exchanges: the points, then the operators at the new common point. Without a term prox
    is the identity.

    A term or constraint is applied in every local step. Sun and Wei project once per round, after
    the average; then local steps leave the set along F(z*), which is not 0, and a term counts 1/K.
    With prox in every step z* is a fixed point, and rounds contract towards it; the proof is in
    `fedsys.theory.fedgda_gt`.

    Theory: lr = min{2 mu/L^2, 1/(2 mu K), root of L^4 K^4 t^3 + 2 L^2 K^2 t - mu K} / 2.

    Args:
        lr: the step size, a number, a schedule or "theory".
        local_steps: K, the number of steps of a round.
    """

    full_participation: ClassVar[str | None] = "control variates of absent clients go stale"
    term_maps: ClassVar[tuple[str, ...]] = ("prox",)
    stackable: ClassVar[tuple[str, ...] | None] = ("lr",)

    @property
    @override
    def needs_full_operator(self) -> bool:
        return True

    @override
    def init(self, oracle: Variational, sync: Sync) -> TrackingState:
        return self._track(oracle.z0, oracle, sync)

    @override
    def step(self, s: TrackingState, oracle: Variational, sync: Sync) -> TrackingState:
        lr = at(self.lr, oracle.step)
        z = s.z - lr * (oracle.full_operator(s.z) + s.correction)
        z = oracle.prox(z, lr)
        if not sync:
            return TrackingState(z, s.correction)
        return self._track(sync(z), oracle, sync)

    def _track(self, z: Tensor, oracle: Variational, sync: Sync) -> TrackingState:
        F = oracle.full_operator(z)
        return TrackingState(z, sync(F) - F)

    @override
    def solution(self, s: TrackingState) -> Tensor:
        return s.z

    @override
    def tuned(self, theory: Theory) -> Self:
        return fill_in(self, theory, lr=lambda c: fedgda_gt.step(c, self.local_steps))
