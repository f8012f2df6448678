"""Step sizes and schedules of FGDA.

Feihu Huang, Xinrui Wang, Junyi Li, Songcan Chen. Adaptive Federated Minimax Optimization with Lower
Complexities. AISTATS 2024. arXiv:2211.07303, Theorem 2 with n = 1: the smallest m, c1 and c2 and
the largest steps that it allows, for K clients and rounds of q steps. mu is that of strong
monotonicity, which implies the one of the PL condition. The condition c1^2 + c2^2 <= 12^4 lambda^4
q^2 L^2 is left aside: its two sides have different units.
"""

from __future__ import annotations

from math import sqrt

from fedsys.core.constants import Constants
from fedsys.core.schedules import Decreasing
from fedsys.theory.expressions import monomial


def max_step(c: Constants, K: int) -> float:
    """Return lambda, the step of the max player."""
    return 3 * sqrt(5 * K) / (32 * sqrt(2) * c.mu)


def min_step(c: Constants, K: int, q: int) -> float:
    """Return gamma, the step of the min player."""
    mu, L_f, lam = c.mu, c.L, max_step(c, K)
    L = L_f * (1 + L_f / (2 * mu))
    Lambda = 1 / 16 + L_f**2 / (4 * mu**2) + 16 * lam**2 * L_f**2 / K
    return min(
        lam * min(1.0, sqrt(5 * K) / (4 * sqrt(2 * Lambda))),
        monomial(_m(c, K, q), 1 / 3) / (4 * L),
        lam * mu / (16 * L),
        mu / (16 * L_f**2),
        2 * lam * mu**2 / (27 * L_f**2),
        sqrt(K) / (8 * sqrt(3) * L_f),
    )


def eta(c: Constants, K: int, q: int) -> Decreasing:
    """Return eta_t = K^(1/3) / (m + t)^(1/3)."""
    return _schedule(1.0, 1 / 3, c, K, q)


def alpha(c: Constants, K: int, q: int) -> Decreasing:
    """Return alpha_t = c1 eta_t^2, the weight of a new gradient of the max player."""
    return _schedule(_c1(c, K), 2 / 3, c, K, q)


def beta(c: Constants, K: int, q: int) -> Decreasing:
    """Return beta_t = c2 eta_t^2, the weight of a new gradient of the min player."""
    return _schedule(2 / (3 * K) + 4.5, 2 / 3, c, K, q)


def _c1(c: Constants, K: int) -> float:
    return 2 / (3 * K) + 4.5 * (c.L / c.mu) ** 2


def _m(c: Constants, K: int, q: int) -> float:
    slow = K * (12 * sqrt(2) * max_step(c, K) * q * c.L) ** 3
    return max(2.0, _c1(c, K) ** 3 * K, slow, (4 * c.L * max_step(c, K)) ** 3)


def _schedule(factor: float, power: float, c: Constants, K: int, q: int) -> Decreasing:
    # The paper counts t from 1.
    return Decreasing(factor * monomial(K, power), _m(c, K, q) + 1, power)
