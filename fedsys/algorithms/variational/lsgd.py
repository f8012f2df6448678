"""LSGD: local SGD on an operator."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf
from typing import ClassVar, Self

from typing_extensions import override

from fedsys.algorithms.variational.base import PointAlgorithm, PointState
from fedsys.core.algorithm import fill_in
from fedsys.core.arithmetic import descend
from fedsys.core.constants import Theory
from fedsys.core.errors import InputError
from fedsys.core.oracles import Variational
from fedsys.core.schedules import at
from fedsys.core.sync import Sync
from fedsys.theory import federated_vi


@dataclass(frozen=True)
class LSGD(PointAlgorithm):
    """LSGD of Wang and Kale (2026), arXiv:2602.09164, eq. (11).

        x_t = x_{t-1} - lr V(x_{t-1}; xi),  averaged over the clients every K steps

    Theory: Theorem 6, for co-coercive operators. Without co-coercivity it may diverge.

    Args:
        lr: the step size, a number, a schedule or "theory".
        local_steps: K, the number of steps of a round.
    """

    full_participation: ClassVar[str | None] = None
    term_maps: ClassVar[tuple[str, ...]] = ("prox",)
    stackable: ClassVar[tuple[str, ...] | None] = ("lr",)

    @override
    def step(self, s: PointState, oracle: Variational, sync: Sync) -> PointState:
        lr = at(self.lr, oracle.step)
        x = descend(s.z, oracle.operator(s.z, oracle.draw()), lr)
        return PointState(sync(oracle.prox(x, lr)))

    @override
    def tuned(self, theory: Theory) -> Self:
        if self._awaits_theory("lr") and isinf(theory.constants.beta):
            raise InputError(
                "LSGD: lr=theory (Theorem 6) needs a co-coercive operator and this one is not; "
                "give algorithm.lr, or use algorithm=lesgd"
            )
        return fill_in(self, theory, lr=lambda _: federated_vi.lsgd_step(theory, self.local_steps))

    @override
    def bound(self, theory: Theory) -> float | None:
        if theory.terms or not theory.covers(self.local_steps, "lr"):
            return None
        return federated_vi.lsgd_bound(theory, self.local_steps)
