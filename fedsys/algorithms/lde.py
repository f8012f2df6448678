"""Local dual extrapolation for composite problems (faster-rates-federated-vi.txt, eq. 13)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf, sqrt
from typing import Self

from torch import Tensor

from fedsys.algorithms.algorithm import State
from fedsys.algorithms.averaging import running_mean
from fedsys.algorithms.terms_of_bounds import over, rate
from fedsys.algorithms.variational import VariationalAlgorithm
from fedsys.communication import Sync
from fedsys.problems import Theory, Variational


@dataclass(frozen=True)
class DualState(State):
    """The dual variable z, its primal point u = grad h_t*(z), and v_o = the mean of v_1..v_t."""

    z: Tensor
    u: Tensor
    v_o: Tensor


@dataclass(frozen=True)
class LDE(VariationalAlgorithm[DualState]):
    """Extra steps in the dual space: x and z are dual, u and v their primal points.

        x_t = z_{t-1} - lr V(u_{t-1}; xi),   v_t = grad h_t*(x_t)
        z_t = z_{t-1} - lr V(v_t; xi'),      u_t = grad h_t*(z_t)

    with h_t = h + t lr phi. Dual variables are averaged, on a communication step both of them. The
    paper starts at 0; any other start is a shift of h.

    Theory: Theorem 7; its second term is read as D^2/3 / (17^1/3 K R^1/3 L^1/3 G^2/3), which
    minimises the bound of the proof and has the right units.

    Args:
        lr: the step size, or "theory".
        local_steps: K, the steps of a round.
    """

    def init(self, oracle: Variational, sync: Sync) -> DualState:
        """z_0 is the start, as a dual variable."""
        u = oracle.mirror(oracle.z0, 0.0)
        return DualState(oracle.z0, u, u)

    def step(self, s: DualState, oracle: Variational, sync: Sync) -> DualState:
        """The extra step and the step, mapped to the primal space."""
        weight = (oracle.step + 1) * self.lr
        x = sync(s.z - self.lr * oracle.operator(s.u, oracle.draw()))
        v = oracle.mirror(x, weight)
        z = sync(s.z - self.lr * oracle.operator(v, oracle.draw()))
        return DualState(z, oracle.mirror(z, weight), running_mean(s.v_o, v, oracle.step))

    def solution(self, s: DualState) -> Tensor:
        """The last primal point."""
        return s.u

    def outputs(self, s: DualState) -> dict[str, Tensor]:
        """The last primal point and the average."""
        return {"": s.u, "average": s.v_o}

    def tuned(self, theory: Theory) -> Self:
        """eta of Theorem 7."""
        return self.fill(theory, lr=lambda _: self._eta(theory))

    def _eta(self, theory: Theory) -> float:
        c, K, R, M = theory.constants, self.local_steps, *theory.size(self.local_steps)
        D, L = c.radius, c.L
        drift = rate(17, 1 / 3) * rate(K, 1, R, 1 / 3, L, 1 / 3, c.G, 2 / 3)
        return min(
            over(D * sqrt(M), c.sigma * sqrt(6 * K * R)),
            over(rate(D, 2 / 3), 0 if isinf(c.G) else drift),
            1 / (sqrt(10) * L),
        )

    def bound(self, theory: Theory) -> float | None:
        """Eq. (14), in the reading above."""
        c, K, R, M = theory.constants, self.local_steps, *theory.size(self.local_steps)
        if c.xi > 0 or c.affine or isinf(c.G):
            return None
        D, L = c.radius, c.L
        drift = rate(17, 1 / 3) * rate(L, 1 / 3, D, 4 / 3, c.G, 2 / 3) / rate(R, 2 / 3)
        average = 2 * sqrt(6) * D * c.sigma / sqrt(M * K * R)
        return average + drift + sqrt(10) * D**2 * L / (K * R)
