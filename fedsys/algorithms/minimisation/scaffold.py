"""SCAFFOLD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import State
from fedsys.core.oracles import Minimisation
from fedsys.core.periodic import StagedAlgorithm
from fedsys.core.schedules import Rate, at
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class ScaffoldState(State):
    """The client's point y, the server's x and c, and the client's control variate c_i."""

    y: Tensor
    x: Tensor
    c_i: Tensor
    c: Tensor


@dataclass(frozen=True)
class Scaffold(StagedAlgorithm[Minimisation, ScaffoldState]):
    """SCAFFOLD of Karimireddy et al. (ICML 2020), Algorithm 1, with all clients in a round.

        y_i <- y_i - lr (grad f_i(y_i; xi) - c_i + c),     K times from y_i = x
        c_i+ = grad f_i(x; xi)                 (option 1), or
        c_i+ = c_i - c + (x - y_i) / (K lr)    (option 2, the mean of the round's gradients)
        x <- x + lr_server mean(y_i - x),    c <- c + mean(c_i+ - c_i)

    A baseline of Zhang et al. (NeurIPS 2023), arXiv:2304.10101. Option 2 assumes a constant step
    size within a round, so schedules are evaluated at the first step of the round.

    Args:
        lr: the clients' step size, a number or a schedule.
        lr_server: the server's step size, a number or a schedule.
        option: how c_i is renewed, 1 or 2.
        local_steps: K, the number of steps of a round.
        decay_at: the fractions of the run at which lr is divided.
        decay_by: what it is divided by.
        total_steps: T, the length of the run; the runner sets it.
    """

    lr: Rate = 0.1
    lr_server: Rate = 1.0
    option: int = 2

    kind: ClassVar[str] = "minimisation"
    stackable: ClassVar[tuple[str, ...] | None] = ("lr", "lr_server")
    full_participation: ClassVar[str | None] = "control variates of absent clients go stale"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "lr_server")
        self._require(self.option in (1, 2), "option", "1 or 2")
        if self.option == 2:
            self._require_divisor("lr")

    @override
    def init(self, oracle: Minimisation, sync: Sync) -> ScaffoldState:
        zero = torch.zeros_like(oracle.x0)
        return ScaffoldState(oracle.x0, oracle.x0, zero, zero)

    @override
    def step(self, s: ScaffoldState, oracle: Minimisation, sync: Sync) -> ScaffoldState:
        first = oracle.step - oracle.step % self.local_steps
        lr = at(self.lr, first) * self._stages.at(first)
        y = s.y - lr * (oracle.grad(s.y, oracle.draw()) - s.c_i + s.c)
        if not sync:
            return ScaffoldState(y, s.x, s.c_i, s.c)
        if self.option == 1:
            c_i = oracle.grad(s.x, oracle.draw())
        else:
            c_i = s.c_i - s.c + (s.x - y) / (self.local_steps * lr)
        move, change = sync(y - s.x, c_i - s.c_i)
        x = s.x + at(self.lr_server, first) * move
        return ScaffoldState(x, x, c_i, s.c + change)

    @override
    def solution(self, s: ScaffoldState) -> Tensor:
        return s.y
