"""The Lyapunov function V_t of ProxSkip along a run, beside the bound of Theorem 3.1.

Siqi Zhang, Sayantan Choudhury, Sebastian U. Stich, Nicolas Loizou. Communication-Efficient Gradient
Descent-Accent Methods for Distributed Variational Inequalities: Unified Analysis and Local Updates.
ICLR 2024. arXiv:2306.05100.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedsys.algorithms.variational.estimators import Estimator
from fedsys.core.optional_oracles import FiniteSum, Solved
from fedsys.core.oracles import Estimated, Variational
from fedsys.core.sync import Sync
from fedsys.theory.proxskip import LyapunovBound

_ROUNDING_STEPS = 32
"""The rounding errors of a point that the bound allows for, in units of the last place / tau."""


@dataclass(frozen=True)
class Lyapunov:
    """V_t = ||x_t - x*||^2 + (gamma/p)^2 ||h_t - F(x*)||^2 + M gamma^2 sigma_t^2, and its bound.

    Norms are sums over all clients, as in the consensus problem (2). The bound has what rounding
    leaves of V_t added: otherwise it would fall below the square of the last place.

    Args:
        estimator: knows sigma_t^2.
        bound: that of the theorem.
        gamma: the step size.
        p: the probability of communication.
        M: the weight of sigma_t^2.
        clients: the number of all clients.
    """

    estimator: Estimator
    bound: LyapunovBound
    gamma: float
    p: float
    M: float
    clients: int

    def metrics(self, state: Any, steps: int, oracle: Variational, sync: Sync) -> dict[str, float]:
        """Return `lyapunov` and `lyapunov_bound` at a state after so many steps.

        The result is empty if the oracle does not know its solution or its samples.
        """
        if not self._start:
            self._start.append(self._first(oracle, sync))
        first = self._start[0]
        if first is None:
            return {}
        z, F_z, V_0, rounding = first
        V_t = self._total(state, oracle, z, F_z, sync)
        return {"lyapunov": V_t, "lyapunov_bound": self.bound.at(steps, V_0) + rounding}

    @cached_property
    def _start(self) -> list[tuple[Tensor, Tensor, float, float] | None]:
        """What is computed at the first record: x*, F(x*), V_0 and the rounding errors."""
        return []

    def _first(self, oracle: Variational, sync: Sync) -> tuple[Tensor, Tensor, float, float] | None:
        has_samples = isinstance(oracle, FiniteSum) or not oracle.finite_sum or self.M == 0
        is_exact = not isinstance(oracle, Estimated) or oracle.unknown_mean() is None
        solution = oracle.solution(sync) if isinstance(oracle, Solved) else None
        if solution is None or not has_samples:
            return None
        # The functions of one client may be random and those of another not: all ranks agree.
        exact = oracle.z0.new_full((len(oracle.z0), 1), float(is_exact), dtype=torch.float64)
        if float(sync(exact)[0]) < 1:
            return None
        z = solution.to(oracle.z0).expand_as(oracle.z0).contiguous()
        F_z = oracle.full_operator(z)
        h = torch.zeros_like(z)
        start = self.estimator.state(oracle.z0, h, *self.estimator.start(oracle))
        V_0 = self._total(start, oracle, z, F_z, sync)
        sizes = z.double().square().sum(1) + self._factor * F_z.double().square().sum(1)
        last_place = _ROUNDING_STEPS * torch.finfo(z.dtype).eps / self.bound.tau
        return z, F_z, V_0, last_place**2 * (V_0 + self._sum(sizes, sync))

    def _total(self, s: Any, oracle: Variational, z: Tensor, F_z: Tensor, sync: Sync) -> float:
        values = (s.x - z).double().square().sum(1)
        values = values + self._factor * (s.h - F_z).double().square().sum(1)
        if self.M > 0:
            sigma = self.estimator.deviation(s, oracle, z)
            values = values + self.M * self.gamma**2 * sigma
        return self._sum(values, sync)

    @property
    def _factor(self) -> float:
        return (self.gamma / self.p) ** 2

    def _sum(self, values: Tensor, sync: Sync) -> float:
        """Return the sum over all clients; the theorem is for means with equal weights."""
        return self.clients * float(sync(values[:, None])[0])
