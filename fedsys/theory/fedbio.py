"""Step sizes of FedBiO.

Junyi Li, Feihu Huang, Heng Huang. Local Stochastic Bilevel Optimization with Momentum-Based
Variance Reduction. 2022. arXiv:2205.01608, Theorem 5.1 (9.1 of the appendix) and Proposition 6. Its
inequalities are strict; `_BELOW` of each limit is taken.
"""

from __future__ import annotations

from math import sqrt

from fedsys.core.constants import Constants

_BELOW = 0.99


def smoothness(c: Constants) -> float:
    """Return L_h = max(L-bar, Gamma, C, rho, 1) of Proposition 6.

    With one L_g for both second derivatives of g, Gamma is C. C_f is the bound of grad f, which
    counts only where second derivatives of g are not constant.
    """
    mu, L, C_g = c.mu_y, c.L, c.C_g
    curved = 0.0 if c.L_g == 0 else c.C_f * c.L_g * (1 / mu + C_g / mu**2)
    smooth = 0.0 if c.L_g == 0 else c.C_f * c.L_g * (c.C_f / mu + C_g / mu**2)
    C = L + L * C_g / mu + curved
    return max((L + C) * C_g / mu + L + smooth, C, C_g / mu, 1.0)


def inner_step(c: Constants) -> float:
    """Return gamma, below 1/L."""
    return _BELOW / c.L


def outer_step(c: Constants, gamma: float, local_steps: int, steps: float) -> float:
    """Return eta = delta / T^(1/3) for T steps in rounds of I."""
    mu, L_h, I = c.mu_y, smoothness(c), local_steps  # noqa: E741, the letter of the paper
    q, q_1, q_2 = 1 - mu * gamma / 2, 1 + mu * gamma / 4, 1 + 4 / (mu * gamma)
    kept = q_1 * q**I
    first = sqrt((1 - q) * (1 - kept)) / (2 * L_h**2 * I * sqrt(q_2 * kept))
    delta = _BELOW * min(first, 1 / (12 * L_h * I), mu * gamma / 2, 1.0)
    return float(delta / steps ** (1 / 3))
