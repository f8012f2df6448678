"""FedProx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import State
from fedsys.core.oracles import Minimisation
from fedsys.core.periodic import StagedAlgorithm
from fedsys.core.schedules import Rate, at
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class AnchoredState(State):
    """The point x, and x_r, where the round began."""

    x: Tensor
    x_r: Tensor


@dataclass(frozen=True)
class FedProx(StagedAlgorithm[Minimisation, AnchoredState]):
    """FedProx of Li et al. (MLSys 2020), Algorithm 2.

        x_i <- x_i - lr (grad f_i(x_i; xi) + mu (x_i - x_r)),  averaged every K steps

    x_r is the point at the start of the round. A baseline of Zhang et al. (NeurIPS 2023),
    arXiv:2304.10101.

    Args:
        lr: the step size, a number or a schedule.
        mu: the weight of the squared distance to x_r, a number or a schedule.
        local_steps: K, the number of steps of a round.
        decay_at: the fractions of the run at which lr is divided.
        decay_by: what it is divided by.
        total_steps: T, the length of the run; the runner sets it.
    """

    lr: Rate = 0.1
    mu: Rate = 0.01

    kind: ClassVar[str] = "minimisation"
    full_participation: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")
        self._require_not_negative("mu", rule="not negative")

    @override
    def init(self, oracle: Minimisation, sync: Sync) -> AnchoredState:
        return AnchoredState(oracle.x0, oracle.x0)

    @override
    def step(self, s: AnchoredState, oracle: Minimisation, sync: Sync) -> AnchoredState:
        lr = at(self.lr, oracle.step) * self._stages.at(oracle.step)
        g = oracle.grad(s.x, oracle.draw())
        x = sync(s.x.sub(g + at(self.mu, oracle.step) * (s.x - s.x_r), alpha=lr))
        return AnchoredState(x, x if sync else s.x_r)

    @override
    def solution(self, s: AnchoredState) -> Tensor:
        return s.x
