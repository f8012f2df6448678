"""Step sizes of LocalSCGDAM.

Xinwen Zhang, Yihan Zhang, Tianbao Yang, Richard Souvenir, Hongchang Gao. Federated Compositional
Deep AUC Maximization. NeurIPS 2023. arXiv:2304.10101, Theorem 1 and Remark 1: the largest steps
that they allow for given alpha, beta_x and beta_y, K clients, T steps and rounds of p steps. The
theorem is for clients with the same distribution and for steps without stages.
"""

from __future__ import annotations

from math import sqrt

from fedsys.core.constants import Constants


def max_step(c: Constants, beta_x: float, beta_y: float) -> float:
    """Return gamma_y."""
    mu, L_f = c.mu_y, c.L
    return min(1 / (6 * L_f), 3 * mu * beta_y**2 / (400 * L_f**2), 3 * beta_x**2 / (16 * mu))


def min_step(c: Constants, alpha: float, beta_x: float, beta_y: float, gamma_y: float) -> float:
    """Return gamma_x."""
    mu, L_f, C_g = c.mu_y, c.L, c.C_g
    outer = _outer_curvature(c)
    return min(
        alpha * mu / (100 * C_g**2 * L_f * sqrt(1 + 6 * L_f**2)),
        beta_x / (32 * sqrt(C_g**4 * L_f**2 + outer**2)),
        beta_y * mu / (144 * C_g**2 * L_f**2),
        sqrt(alpha * mu) / (24 * C_g * sqrt(100 * C_g**2 * L_f**4 + 2 * C_g**2 * mu**2)),
        gamma_y * mu**2 / (20 * C_g**2 * L_f**2),
    )


def _outer_curvature(c: Constants) -> float:
    """Return C_f L_g, which vanishes for an affine inner function."""
    return 0.0 if c.L_g == 0 else c.C_f * c.L_g


def eta(
    c: Constants, weights: tuple[float, ...], gamma_x: float, gamma_y: float, p: int, KT: float
) -> float:
    """Return eta = sqrt(K/T), as far as the theorem allows; `weights` are alpha, beta_x, beta_y.

    `KT` is K/T, the number of clients by that of steps.
    """
    L_Phi = 2 * c.C_g**2 * c.L**2 / c.mu_y + _outer_curvature(c)
    limits = (1 / (2 * gamma_x * L_Phi), 1 / (10 * p**2 * gamma_y * c.L), 1.0)
    return min(sqrt(KT), *limits, *(1 / weight for weight in weights))
