"""FCFL: fair and consistent federated learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import Algorithm, State
from fedsys.core.oracles import Grouped
from fedsys.core.rounds import CommunicationSchedule, Every
from fedsys.core.schedules import Rate, at
from fedsys.core.sync import Sync


@dataclass(frozen=True)
class FCFLState(State):
    """The model x, and the temperatures of the smoothed maxima of losses and disparities."""

    x: Tensor
    delta: Tensor


@dataclass(frozen=True)
class FCFL(Algorithm[Grouped, FCFLState]):
    """FCFL of Cui et al. (NeurIPS 2021), in the form of the authors' code.

    Multi-objective descent on the clients' losses l_i and disparities g_i. A baseline of Li, Huang
    and Huang (2022), arXiv:2205.01608.

    First stage: G_l and G_g are the gradients of the smoothed maxima over clients,
    sum_i softmax(l / delta)_i grad l_i, and x <- x - lr (a_1 G_l + a_2 G_g) with a in the simplex:
    max g <= budget: a maximises the descent of the loss; else that of the disparity, without
    raising the loss. Second stage: x <- x - lr a'D, D = [grad l_1, ..., grad l_M, G_g (0 within the
    budget)], a maximises the descent of the mean loss, with none of the objectives going up.

    Every step communicates: each client sends its l_i, g_i and their gradients.

    Args:
        lr: the step size, a number or a schedule.
        budget: epsilon, the disparity that is allowed.
        first_stage: the steps of the first stage.
        temperature: where delta starts, for both maxima.
    """

    lr: Rate = 0.1
    budget: float = 0.05
    first_stage: int = 1600
    temperature: float = 0.5

    kind: ClassVar[str] = "grouped"
    full_participation: ClassVar[str | None] = "the server weighs the values of every client"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "temperature")
        self._require(self.budget >= 0, "budget", "at least 0")
        self._require(self.first_stage >= 0, "first_stage", "at least 0")

    @property
    @override
    def schedule(self) -> CommunicationSchedule:
        return Every(1)

    @override
    def init(self, oracle: Grouped, sync: Sync) -> FCFLState:
        delta = torch.full_like(oracle.x0[:, :2], self.temperature)
        return FCFLState(oracle.x0, delta)

    @override
    def step(self, s: FCFLState, oracle: Grouped, sync: Sync) -> FCFLState:
        lr, xi = at(self.lr, oracle.step), oracle.draw()
        loss, loss_grad = oracle.loss_and_grad(s.x, xi)
        disparity, disparity_grad = oracle.disparity_and_grad(s.x, xi)
        values = torch.stack([loss, disparity], dim=1)
        sent = sync.gather(torch.cat([values, loss_grad, disparity_grad], dim=1))
        f, g = sent[:, 0], sent[:, 1]
        grads_l, grads_g = sent[:, 2:].chunk(2, dim=1)
        G_g = (g / s.delta[0, 1]).softmax(0) @ grads_g
        if oracle.step >= self.first_stage:
            direction = self._second(grads_l, G_g, g)
            return FCFLState(s.x - lr * direction, s.delta)
        G_l = (f / s.delta[0, 0]).softmax(0) @ grads_l
        norms = torch.stack([G_l.norm(), G_g.norm()])
        colder = (s.delta > 1e-4) & (0.1 * norms <= s.delta)
        delta = torch.where(colder, 0.01 * s.delta, s.delta)
        return FCFLState(s.x - lr * self._first(G_l, G_g, g), delta)

    def _first(self, G_l: Tensor, G_g: Tensor, g: Tensor) -> Tensor:
        D = torch.stack([G_l, G_g])
        if bool(g.max() <= self.budget):
            a = best_mixture(D @ G_l)
        else:
            a = best_mixture(D @ G_g, (D @ G_l)[None], otherwise=[0.0, 1.0])
        return a @ D

    def _second(self, grads_l: Tensor, G_g: Tensor, g: Tensor) -> Tensor:
        active = (g.max() >= self.budget).to(G_g.dtype)
        D = torch.cat([grads_l, (active * G_g)[None]])
        M = len(grads_l)
        a = best_mixture(D @ grads_l.mean(0), D @ D.T, otherwise=[1 / M] * M + [0.0])
        return a @ D

    @override
    def solution(self, s: FCFLState) -> Tensor:
        return s.x


def best_mixture(
    gains: Tensor, rows: Tensor | None = None, otherwise: list[float] | None = None
) -> Tensor:
    """The a in the simplex that maximises gains'a subject to rows a >= 0, or a way out."""
    if rows is None:
        return torch.zeros_like(gains).scatter(0, gains.argmax(), 1.0)
    from scipy.optimize import linprog  # takes a while

    # Gradients grow small while a stays of size 1: the solver's tolerances are absolute.
    cost, bounds = -_scaled(gains), -_scaled(rows)
    size = len(gains)
    found = linprog(
        cost, A_ub=bounds, b_ub=np.zeros(len(bounds)), A_eq=np.ones((1, size)), b_eq=[1.0]
    )
    return gains.new_tensor(found.x if found.status == 0 else otherwise)


def _scaled(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.double().cpu().numpy()
    largest = np.abs(array).max()
    return array / largest if largest > 0 else array
