"""Local dual extrapolation for composite problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.averaged import ExtrapolatingAlgorithm
from fedsys.algorithms.variational.base import VariationalAlgorithm
from fedsys.core.algorithm import State, fill_in
from fedsys.core.arithmetic import descend
from fedsys.core.constants import Theory
from fedsys.core.oracles import Variational
from fedsys.core.schedules import number
from fedsys.core.sync import Sync
from fedsys.theory import federated_vi


@dataclass(frozen=True)
class DualState(State):
    """The dual variable z, and its primal point u = grad h_t*(z)."""

    z: Tensor
    u: Tensor


@dataclass(frozen=True)
class LDE(VariationalAlgorithm[DualState], ExtrapolatingAlgorithm[Variational, DualState]):
    """Local dual extrapolation of Wang and Kale (2026), arXiv:2602.09164, eq. (13).

        x_t = z_{t-1} - lr V(u_{t-1}; xi),   v_t = grad h_t*(x_t)
        z_t = z_{t-1} - lr V(v_t; xi'),      u_t = grad h_t*(z_t)

    with h_t = h + t lr phi; x and z are dual, u and v their primal points. Dual variables are
    averaged over the clients, on a communication step both of them. The paper starts at 0; any
    other start is a shift of h. The evaluated mean is that of the v_t.

    Theory: Theorem 7, in the reading of `fedsys.theory.federated_vi`.

    Args:
        lr: the step size, a number or "theory".
        local_steps: K, the number of steps of a round.
    """

    term_maps: ClassVar[tuple[str, ...]] = ("mirror",)
    averages: ClassVar[bool] = True
    stackable: ClassVar[tuple[str, ...] | None] = ("lr",)
    constant: ClassVar[Mapping[str, str]] = {
        "lr": "the weight of the composite term in h_t is t lr, which assumes a constant step size"
    }

    @override
    def init(self, oracle: Variational, sync: Sync) -> DualState:
        return DualState(oracle.z0, oracle.mirror(oracle.z0, 0.0))

    @override
    def step_and_point(
        self, s: DualState, oracle: Variational, sync: Sync
    ) -> tuple[DualState, Tensor]:
        lr = number(self.lr)
        weight = (oracle.step + 1) * lr
        x = sync(descend(s.z, oracle.operator(s.u, oracle.draw()), lr))
        v = oracle.mirror(x, weight)
        z = sync(descend(s.z, oracle.operator(v, oracle.draw()), lr))
        return DualState(z, oracle.mirror(z, weight)), v

    @override
    def solution(self, s: DualState) -> Tensor:
        return s.u

    @override
    def tuned(self, theory: Theory) -> Self:
        return fill_in(self, theory, lr=lambda _: federated_vi.lde_step(theory, self.local_steps))

    @override
    def bound(self, theory: Theory) -> float | None:
        if not theory.covers(self.local_steps, "lr"):
            return None
        return federated_vi.lde_bound(theory, self.local_steps)
