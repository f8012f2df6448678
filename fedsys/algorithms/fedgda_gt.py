"""FedGDA-GT, gradient tracking (Sun and Wei, NeurIPS 2022; baseline of proxskip-vip.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from torch import Tensor

from fedsys.algorithms.algorithm import State
from fedsys.algorithms.variational import VariationalAlgorithm
from fedsys.communication import Sync
from fedsys.problems import Constants, Theory, Variational


@dataclass(frozen=True)
class TrackingState(State):
    """The point z, and the correction mean(F(z_r)) - F_i(z_r) of the round's start z_r."""

    z: Tensor
    correction: Tensor


@dataclass(frozen=True)
class FedGDAGT(VariationalAlgorithm[TrackingState]):
    """z_i <- z_i - lr (F_i(z_i) - F_i(z_r) + mean F(z_r)), full operators; average every K steps.

    A round has two exchanges: the points, then the operators at the new common point.

    Theory: lr = min{2 mu/L^2, 1/(2 mu K), root of L^4 K^4 t^3 + 2 L^2 K^2 t - mu K} / 2.

    Args:
        lr: the step size, or "theory".
        local_steps: K, the steps of a round.
    """

    needs_all_clients: ClassVar[str] = "the control variate of one that is away grows old"

    def init(self, oracle: Variational, sync: Sync) -> TrackingState:
        """The first exchange of operators."""
        return self._track(oracle.z0, oracle, sync)

    def step(self, s: TrackingState, oracle: Variational, sync: Sync) -> TrackingState:
        """A corrected step; after the average, the operators of the next round are exchanged."""
        z = s.z - self.lr * (oracle.full_operator(s.z) + s.correction)
        if not sync:
            return TrackingState(z, s.correction)
        return self._track(oracle.prox(sync(z), self.lr), oracle, sync)

    def _track(self, z: Tensor, oracle: Variational, sync: Sync) -> TrackingState:
        F = oracle.full_operator(z)
        return TrackingState(z, sync(F) - F)

    def solution(self, s: TrackingState) -> Tensor:
        """z."""
        return s.z

    def tuned(self, theory: Theory) -> Self:
        """The authors' step size."""
        return self.fill(theory, lr=self._step)

    def _step(self, c: Constants) -> float:
        mu, L, K = c.mu, c.L, self.local_steps
        roots = np.roots([(L * K) ** 4, 0.0, 2 * (L * K) ** 2, -mu * K])
        positive = [r.real for r in roots if abs(r.imag) < 1e-9 * abs(r) and r.real > 0]
        smallest = min(positive, default=0.0)  # no step is small enough for mu = 0
        return 0.5 * min(2 * mu / L**2, 1 / (2 * mu * K), float(smallest))
