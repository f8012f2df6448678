"""SCAFFOLD (Karimireddy et al., ICML 2020; baseline of localscgdam.txt), all clients in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsys.algorithms.algorithm import State
from fedsys.algorithms.stages import StagedAlgorithm
from fedsys.communication import Sync
from fedsys.problems import Minimisation


@dataclass(frozen=True)
class ScaffoldState(State):
    """The client's point y, the server's x and c, and the client's control variate c_i."""

    y: Tensor
    x: Tensor
    c_i: Tensor
    c: Tensor


@dataclass(frozen=True)
class Scaffold(StagedAlgorithm[Minimisation, ScaffoldState]):
    """Gradient steps with control variates; the server moves by the mean of the clients' moves.

        y_i <- y_i - lr (grad f_i(y_i; xi) - c_i + c),     K times from y_i = x
        c_i+ = grad f_i(x; xi)                 (option 1), or
        c_i+ = c_i - c + (x - y_i) / (K lr)    (option 2, the mean of the round's gradients)
        x <- x + lr_server mean(y_i - x),    c <- c + mean(c_i+ - c_i)

    Args:
        lr: the clients' step size.
        lr_server: the server's.
        option: how c_i is renewed, 1 or 2.
        local_steps: K, the steps of a round.
        decay_at: shares of the run where lr falls.
        decay_by: what it is divided by there.
        total_steps: T, the length of the run; the runner tells it.
    """

    lr: float = 0.1
    lr_server: float = 1.0
    option: int = 2

    kind: ClassVar[str] = "minimisation"
    needs_all_clients: ClassVar[str] = "the control variate of one that is away grows old"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "lr_server")
        self._require(self.option in (1, 2), "option", "1 or 2")

    def init(self, oracle: Minimisation, sync: Sync) -> ScaffoldState:
        """All control variates are 0."""
        zero = torch.zeros_like(oracle.x0)
        return ScaffoldState(oracle.x0, oracle.x0, zero, zero)

    def step(self, s: ScaffoldState, oracle: Minimisation, sync: Sync) -> ScaffoldState:
        """A corrected step; at the end of a round points and control variates move together."""
        lr = self.lr * self._decay(oracle.step)  # constant in a round, as option 2 assumes
        y = s.y - lr * (oracle.grad(s.y, oracle.draw()) - s.c_i + s.c)
        if not sync:
            return ScaffoldState(y, s.x, s.c_i, s.c)
        if self.option == 1:
            c_i = oracle.grad(s.x, oracle.draw())
        else:
            c_i = s.c_i - s.c + (s.x - y) / (self.local_steps * lr)
        move, change = sync(y - s.x, c_i - s.c_i)
        x = s.x + self.lr_server * move
        return ScaffoldState(x, x, c_i, s.c + change)

    def solution(self, s: ScaffoldState) -> Tensor:
        """The client's point, which the server's is at the end of a round."""
        return s.y
