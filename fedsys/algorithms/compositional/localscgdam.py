"""LocalSCGDAM, and LocalSGDAM: the same without inner function.

Xinwen Zhang, Yihan Zhang, Tianbao Yang, Richard Souvenir, Hongchang Gao. Federated Compositional
Deep AUC Maximization. NeurIPS 2023. arXiv:2304.10101.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.minimax.base import AnyMinimaxState, MinimaxState
from fedsys.core.algorithm import AnyOracle, fill_in
from fedsys.core.constants import Theory
from fedsys.core.oracles import Compositional, Minimax
from fedsys.core.periodic import StagedAlgorithm
from fedsys.core.schedules import FromTheory, Rate, at, highest
from fedsys.core.sync import Sync
from fedsys.theory import localscgdam


@dataclass(frozen=True)
class LocalSGDAMState(MinimaxState):
    """The two players x and y, and their momenta u and v."""

    u: Tensor
    v: Tensor


@dataclass(frozen=True)
class CompositionalState(LocalSGDAMState):
    """The state of a min-max algorithm, and the estimate h of the inner function."""

    h: Tensor


@dataclass(frozen=True)
class _LettersOfAlgorithm1(StagedAlgorithm[AnyOracle, AnyMinimaxState]):
    """The common hyperparameters, named as in Algorithm 1; eta is divided in stages."""

    eta: Rate = 0.3
    gamma_x: Rate = 0.33
    gamma_y: Rate = 0.33
    beta_x: Rate = 3.3
    beta_y: Rate = 3.3
    decays: str = "gamma"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("eta", "gamma_x", "gamma_y")
        self._require_weight("beta_x", "beta_y")
        self._require(self.decays in ("eta", "gamma"), "decays", "eta or gamma")

    def _require_weight(self, *names: str) -> None:
        for name in names:
            weight, eta = self._highest(name, 0.0), self._highest("eta", 0.0)
            rule = f"in (0, 1/eta], eta = {eta}" if eta else "positive"
            self._require(weight > 0 and weight * eta <= 1, name, rule)

    def _rates(self, step: int) -> tuple[float, float, float]:
        """eta, and the step sizes gamma_x eta and gamma_y eta."""
        decay, eta = self._stages.at(step), at(self.eta, step)
        step_x = at(self.gamma_x, step) * eta * decay
        step_y = at(self.gamma_y, step) * eta * decay
        return eta * decay if self.decays == "eta" else eta, step_x, step_y

    @override
    def solution(self, s: AnyMinimaxState) -> Tensor:
        return s.z


def _moved(estimate: Tensor, value: Tensor, weight: float) -> Tensor:
    """The moving average (1 - weight) estimate + weight value."""
    return torch.lerp(estimate, value, weight)  # in one pass over memory


@dataclass(frozen=True)
class LocalSCGDAM(_LettersOfAlgorithm1[Compositional, CompositionalState]):
    """LocalSCGDAM of Zhang et al. (NeurIPS 2023), arXiv:2304.10101, Algorithm 1.

        x <- x - gamma_x eta u,                      y <- y + gamma_y eta v
        h <- (1 - alpha eta) h + alpha eta g(x; xi)
        u <- (1 - beta_x eta) u + beta_x eta grad g(x; xi)' grad_h f(h, y; zeta)
        v <- (1 - beta_y eta) v + beta_y eta grad_y f(h, y; zeta)

    h, u, v, x and y are averaged every K steps. Inner and outer samples are independent.

    Theory (Theorem 1 and Remark 1): eta = sqrt(clients / T), and with gamma_x and gamma_y at most
    what the theorem allows for the given alpha, beta_x and beta_y.

    Args:
        eta: the step size, which is also in the weights of the moving averages. This and the other
            numbers may be schedules. eta, gamma_x and gamma_y may be "theory".
        gamma_x: factor on the steps of the min player.
        gamma_y: factor on the steps of the max player.
        alpha: alpha eta is the weight of a new value in h.
        beta_x: beta_x eta is the weight of a new gradient in u.
        beta_y: beta_y eta is the weight of a new gradient in v.
        decays: what is divided in stages, "gamma", or "eta" as printed, which also lengthens the
            memory of the moving averages.
        local_steps: K, the number of steps of a round (p in the paper).
        decay_at: the fractions of the run at which it is divided.
        decay_by: what it is divided by.
        total_steps: T, the length of the run; the runner sets it.
    """

    eta: Rate | FromTheory = 0.3  # type: ignore[assignment]
    gamma_x: Rate | FromTheory = 0.33  # type: ignore[assignment]
    gamma_y: Rate | FromTheory = 0.33  # type: ignore[assignment]
    alpha: Rate = 3.0

    kind: ClassVar[str] = "compositional"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_weight("alpha")

    @override
    def init(self, oracle: Compositional, sync: Sync) -> CompositionalState:
        x, y, zeta, xi = oracle.x0, oracle.y0, oracle.draw(), oracle.draw()
        h, transposed_jacobian = oracle.inner(x, xi)
        gh, gy = oracle.outer_grads(h, y, zeta)
        return CompositionalState(x, y, transposed_jacobian(gh), gy, h)

    @override
    def step(self, s: CompositionalState, oracle: Compositional, sync: Sync) -> CompositionalState:
        eta, step_x, step_y = self._rates(oracle.step)
        zeta, xi = oracle.draw(), oracle.draw()
        x, y = s.x.sub(s.u, alpha=step_x), s.y.add(s.v, alpha=step_y)
        g, transposed_jacobian = oracle.inner(x, xi)
        h = _moved(s.h, g, at(self.alpha, oracle.step) * eta)
        gh, gy = oracle.outer_grads(h, y, zeta)
        u = _moved(s.u, transposed_jacobian(gh), at(self.beta_x, oracle.step) * eta)
        v = _moved(s.v, gy, at(self.beta_y, oracle.step) * eta)
        h, u, v, x, y = sync(h, u, v, x, y)
        return CompositionalState(x, y, u, v, h)

    @override
    def tuned(self, theory: Theory) -> Self:
        rounds, clients = theory.size(self.local_steps)
        p, share = self.local_steps, clients / (rounds * self.local_steps)
        weights = highest(self.alpha), highest(self.beta_x), highest(self.beta_y)
        tuned = fill_in(self, theory, gamma_y=lambda c: localscgdam.max_step(c, *weights[1:]))
        gamma_y = tuned._highest("gamma_y", 0.0)
        tuned = fill_in(tuned, theory, gamma_x=lambda c: localscgdam.min_step(c, *weights, gamma_y))
        gamma_x = tuned._highest("gamma_x", 0.0)
        return fill_in(
            tuned, theory, eta=lambda c: localscgdam.eta(c, weights, gamma_x, gamma_y, p, share)
        )


@dataclass(frozen=True)
class LocalSGDAM(_LettersOfAlgorithm1[Minimax, LocalSGDAMState]):
    """LocalSGDAM, a baseline of Zhang et al. (NeurIPS 2023), arXiv:2304.10101.

    The update is that of Momentum Local SGDA (Sharma et al., ICML 2022) with alpha =
    eta and beta = beta_x = beta_y, in the letters of LocalSCGDAM and with stages:

        x <- x - gamma_x eta u,                      y <- y + gamma_y eta v
        u <- (1 - beta_x eta) u + beta_x eta grad_x f(x, y; zeta),    v likewise

    u, v, x and y are averaged every K steps.

    Args:
        eta: the step size, which is also in the weights of the moving averages. This and the other
            numbers may be schedules.
        gamma_x: factor on the steps of the min player.
        gamma_y: factor on the steps of the max player.
        beta_x: beta_x eta is the weight of a new gradient in u.
        beta_y: beta_y eta is the weight of a new gradient in v.
        decays: what is divided in stages, "gamma", or "eta" as printed, which also lengthens the
            memory of the moving averages.
        local_steps: K, the number of steps of a round (p in the paper).
        decay_at: the fractions of the run at which it is divided.
        decay_by: what it is divided by.
        total_steps: T, the length of the run; the runner sets it.
    """

    kind: ClassVar[str] = "minimax"
    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")

    @override
    def init(self, oracle: Minimax, sync: Sync) -> LocalSGDAMState:
        x, y = oracle.x0, oracle.y0
        return LocalSGDAMState(x, y, *oracle.grads(x, y, oracle.draw()))

    @override
    def step(self, s: LocalSGDAMState, oracle: Minimax, sync: Sync) -> LocalSGDAMState:
        eta, step_x, step_y = self._rates(oracle.step)
        x = oracle.prox_x(s.x.sub(s.u, alpha=step_x), step_x)
        y = oracle.prox_y(s.y.add(s.v, alpha=step_y), step_y)
        gx, gy = oracle.grads(x, y, oracle.draw())
        u = _moved(s.u, gx, at(self.beta_x, oracle.step) * eta)
        v = _moved(s.v, gy, at(self.beta_y, oracle.step) * eta)
        u, v, x, y = sync(u, v, x, y)
        return LocalSGDAMState(x, y, u, v)
