"""The step size of Local SGDA.

Yuyang Deng, Mehrdad Mahdavi. Local Stochastic Gradient Descent Ascent: Convergence Analysis and
Communication Efficiency. AISTATS 2021. The strongly-convex-strongly-concave case, in the form that
Zhang et al. (ICLR 2024), arXiv:2306.05100, compare with.
"""

from __future__ import annotations

from fedsys.core.constants import Constants
from fedsys.core.schedules import Decreasing


def step(c: Constants, K: int) -> Decreasing:
    """Return lr_t = 8 / (mu (t + a)), a = 2048 K (L/mu)^2."""
    return Decreasing(8 / c.mu, 2048 * K * (c.L / c.mu) ** 2)
