"""LocalSCGDAM (localscgdam.txt, Algorithm 1), and LocalSGDAM: the same without inner function.

LocalSGDAM is Momentum Local SGDA (Sharma et al., ICML 2022) in the letters of localscgdam.txt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsys.algorithms.algorithm import AnyOracle
from fedsys.algorithms.minimax import AnyMinimaxState, MinimaxState
from fedsys.algorithms.stages import StagedAlgorithm
from fedsys.communication import Sync
from fedsys.problems import Compositional, Minimax


@dataclass(frozen=True)
class MomentumState(MinimaxState):
    """The two players x and y, and their momenta u and v."""

    u: Tensor
    v: Tensor


@dataclass(frozen=True)
class CompositionalState(MomentumState):
    """The same, and the estimate h of the inner function."""

    h: Tensor


@dataclass(frozen=True)
class _Momentum(StagedAlgorithm[AnyOracle, AnyMinimaxState]):
    """What both methods share: the letters of Algorithm 1, and what falls in stages."""

    eta: float = 0.3
    gamma_x: float = 0.33
    gamma_y: float = 0.33
    beta_x: float = 3.3
    beta_y: float = 3.3
    decays: str = "gamma"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("eta", "gamma_x", "gamma_y")
        self._require_weight("beta_x", "beta_y")
        self._require(self.decays in ("eta", "gamma"), "decays", "eta or gamma")

    def _require_weight(self, *names: str) -> None:
        for name in names:
            in_range = 0 < getattr(self, name) * self.eta <= 1
            self._require(in_range, name, f"in (0, 1/eta], eta = {self.eta}")

    def _rates(self, step: int) -> tuple[float, float, float]:
        """eta, and the step sizes gamma_x eta and gamma_y eta."""
        decay = self._decay(step)
        eta = self.eta * decay if self.decays == "eta" else self.eta
        return eta, self.gamma_x * self.eta * decay, self.gamma_y * self.eta * decay

    def solution(self, s: AnyMinimaxState) -> Tensor:
        """z = (x, y)."""
        return s.z


def _moved(estimate: Tensor, value: Tensor, weight: float) -> Tensor:
    """The moving average (1 - weight) estimate + weight value."""
    return torch.lerp(estimate, value, weight)  # in one pass over memory


@dataclass(frozen=True)
class LocalSCGDAM(_Momentum[Compositional, CompositionalState]):
    """Stochastic compositional descent ascent with momentum; h, u, v, x, y averaged every K steps.

        x <- x - gamma_x eta u,                      y <- y + gamma_y eta v
        h <- (1 - alpha eta) h + alpha eta g(x; xi)
        u <- (1 - beta_x eta) u + beta_x eta grad g(x; xi)' grad_h f(h, y; zeta)
        v <- (1 - beta_y eta) v + beta_y eta grad_y f(h, y; zeta)

    Args:
        eta: the step size, which is also in the weights of the moving averages.
        gamma_x: factor on the steps of the min player.
        gamma_y: factor on the steps of the max player.
        alpha: alpha eta is the weight of a new value in h.
        beta_x: beta_x eta is the weight of a new gradient in u.
        beta_y: beta_y eta is the weight of a new gradient in v.
        decays: what falls in stages, "gamma", or "eta" as printed, which lengthens all memories.
        local_steps: K, the steps of a round (p in the paper).
        decay_at: shares of the run where it falls.
        decay_by: what it is divided by there.
        total_steps: T, the length of the run; the runner tells it.
    """

    alpha: float = 3.0

    kind: ClassVar[str] = "compositional"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_weight("alpha")

    def init(self, oracle: Compositional, sync: Sync) -> CompositionalState:
        """h_0, u_0 and v_0: each client's own, of one draw."""
        x, y, zeta, xi = oracle.x0, oracle.y0, oracle.draw(), oracle.draw()
        h, transposed_jacobian = oracle.inner(x, xi)
        gh, gy = oracle.outer_grads(h, y, zeta)
        return CompositionalState(x, y, transposed_jacobian(gh), gy, h)

    def step(self, s: CompositionalState, oracle: Compositional, sync: Sync) -> CompositionalState:
        """Lines 2 to 6; inner and outer samples are independent."""
        eta, step_x, step_y = self._rates(oracle.step)
        zeta, xi = oracle.draw(), oracle.draw()
        x, y = s.x.sub(s.u, alpha=step_x), s.y.add(s.v, alpha=step_y)
        g, transposed_jacobian = oracle.inner(x, xi)
        h = _moved(s.h, g, self.alpha * eta)
        gh, gy = oracle.outer_grads(h, y, zeta)
        u = _moved(s.u, transposed_jacobian(gh), self.beta_x * eta)
        v = _moved(s.v, gy, self.beta_y * eta)
        h, u, v, x, y = sync(h, u, v, x, y)
        return CompositionalState(x, y, u, v, h)


@dataclass(frozen=True)
class LocalSGDAM(_Momentum[Minimax, MomentumState]):
    """Stochastic descent ascent with momentum; u, v, x, y averaged every K steps.

        x <- x - gamma_x eta u,                      y <- y + gamma_y eta v
        u <- (1 - beta_x eta) u + beta_x eta grad_x f(x, y; zeta),    v likewise

    Args:
        eta: the step size, which is also in the weights of the moving averages.
        gamma_x: factor on the steps of the min player.
        gamma_y: factor on the steps of the max player.
        beta_x: beta_x eta is the weight of a new gradient in u.
        beta_y: beta_y eta is the weight of a new gradient in v.
        decays: what falls in stages, "gamma", or "eta" as printed, which lengthens all memories.
        local_steps: K, the steps of a round (p in the paper).
        decay_at: shares of the run where it falls.
        decay_by: what it is divided by there.
        total_steps: T, the length of the run; the runner tells it.
    """

    kind: ClassVar[str] = "minimax"

    def init(self, oracle: Minimax, sync: Sync) -> MomentumState:
        """u_0 and v_0: each client's own, of one draw."""
        x, y = oracle.x0, oracle.y0
        return MomentumState(x, y, *oracle.grads(x, y, oracle.draw()))

    def step(self, s: MomentumState, oracle: Minimax, sync: Sync) -> MomentumState:
        """Both players move, then their momenta, at the new point."""
        eta, step_x, step_y = self._rates(oracle.step)
        x = oracle.prox_x(s.x.sub(s.u, alpha=step_x), step_x)
        y = oracle.prox_y(s.y.add(s.v, alpha=step_y), step_y)
        gx, gy = oracle.grads(x, y, oracle.draw())
        u = _moved(s.u, gx, self.beta_x * eta)
        v = _moved(s.v, gy, self.beta_y * eta)
        u, v, x, y = sync(u, v, x, y)
        return MomentumState(x, y, u, v)
