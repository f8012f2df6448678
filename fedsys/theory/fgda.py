"""Step sizes and schedules of FGDA and AdaFGDA.

Feihu Huang, Xinrui Wang, Junyi Li, Songcan Chen. Adaptive Federated Minimax Optimization with Lower
Complexities. AISTATS 2024. arXiv:2211.07303, Theorem 2 with n = 1: the smallest m, c1 and c2 and
the largest steps that it allows, for K clients and rounds of q steps. mu is that of strong
monotonicity, which implies the one of the PL condition. The condition c1^2 + c2^2 <= 12^4 lambda^4
q^2 L^2 is left aside: its two sides have different units.

AdaFGDA has the same with matrices in [rho, rho_u] (Theorem 1, restated as Theorem 3 of its
appendix). The limits of gamma in which the printed statements differ are those of Lemma 6, which
with rho = rho_u = 1 are those of Theorem 2. Since c2 <= c1, m need not count it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from fedsys.core.constants import Constants
from fedsys.core.schedules import Decreasing
from fedsys.theory.expressions import monomial


@dataclass(frozen=True)
class Matrices:
    """Assumption 7: A >= rho I and rho I <= B <= rho_u I."""

    rho: float = 1.0
    rho_u: float = 1.0


IDENTITY = Matrices()
"""The matrices of FGDA."""


def matrix_range(low: float, high: float) -> Matrices:
    """Return rho and rho_u of matrices in [low, high], with rho <= 1 and rho_u <= 135/(64 rho^2).

    A smaller rho is a lower bound as well, so that both conditions can be met.
    """
    return Matrices(min(1.0, low, sqrt(135 / (64 * high))), high)


def max_step(c: Constants, K: int) -> float:
    """Return lambda, the step of the max player."""
    return 3 * sqrt(5 * K) / (32 * sqrt(2) * c.mu)


def min_step(c: Constants, K: int, q: int, of: Matrices = IDENTITY) -> float:
    """Return gamma, the step of the min player."""
    mu, L_f, lam, rho, rho_u = c.mu, c.L, max_step(c, K), of.rho, of.rho_u
    L = L_f * (1 + L_f / (2 * mu))
    Lambda = 1 / 16 + L_f**2 * rho_u / (4 * mu**2) + 16 * lam**2 * L_f**2 / (K * rho**2)
    return min(
        lam * min(1.0, sqrt(5 * K) / (4 * sqrt(2 * Lambda))),
        monomial(_m(c, K, q, of), 1 / 3) * rho / (4 * L),
        lam * mu / (16 * rho_u * L),
        rho * mu / (16 * rho_u * L_f**2),
        2 * lam * mu**2 * rho / (27 * L_f**2 * rho_u),
        sqrt(K) * rho / (8 * sqrt(3) * L_f),
    )


def eta(c: Constants, K: int, q: int, of: Matrices = IDENTITY) -> Decreasing:
    """Return eta_t = K^(1/3) / (m + t)^(1/3)."""
    return _schedule(1.0, 1 / 3, c, K, q, of)


def alpha(c: Constants, K: int, q: int, of: Matrices = IDENTITY) -> Decreasing:
    """Return alpha_t = c1 eta_t^2, the weight of a new gradient of the max player."""
    return _schedule(_c1(c, K, of), 2 / 3, c, K, q, of)


def beta(c: Constants, K: int, q: int, of: Matrices = IDENTITY) -> Decreasing:
    """Return beta_t = c2 eta_t^2, the weight of a new gradient of the min player."""
    return _schedule(2 / (3 * K) + 4.5, 2 / 3, c, K, q, of)


def _c1(c: Constants, K: int, of: Matrices) -> float:
    return 2 / (3 * K) + 4.5 * of.rho_u / of.rho * (c.L / c.mu) ** 2


def _m(c: Constants, K: int, q: int, of: Matrices) -> float:
    slow = K * (12 * sqrt(2) * max_step(c, K) * q * c.L / of.rho) ** 3
    fast = (4 * c.L * of.rho_u * max_step(c, K)) ** 3
    return max(2.0, _c1(c, K, of) ** 3 * K, slow, fast)


def _schedule(
    factor: float, power: float, c: Constants, K: int, q: int, of: Matrices
) -> Decreasing:
    # The paper counts t from 1.
    return Decreasing(factor * monomial(K, power), _m(c, K, q, of) + 1, power)
