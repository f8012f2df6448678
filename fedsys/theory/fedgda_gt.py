"""The step size of FedGDA-GT, and a proof that it converges with a composite term.

Zhenyu Sun, Ermin Wei. A Communication-efficient Algorithm with Linear Convergence for Federated
Minimax Learning. NeurIPS 2022.

Proof that rounds with a term converge to z*: for F_i that are mu-strongly monotone and L-Lipschitz
and lr <= mu / (256 L^2 K^3), ||z_{r+1} - z*|| <= (1 - lr mu K / 8) ||z_r - z*||.
Let T(z) = prox(z - lr F(z)), F the mean operator, e = ||z_r - z*|| and d = ||T(z_r) - z_r||.

1. T contracts by q <= 1 - lr mu / 2, so q^K <= 1 - lr mu K / 4 and ||T^k(z_r) - z_r|| <= k d.
2. A client's direction differs from F by at most 2 L ||z_i - z_r||, and the first step is the same
   for all: after K steps they, and their mean, are within 2 lr L K^2 d of T^K(z_r).
3. If d <= 2 lr L e, that is at most 4 lr^2 L^2 K^2 e <= lr mu K e / 8, half of the gain of 1.
4. If d > 2 lr L e: prox is firmly non-expansive, so ||T(z_r) - z*||^2 <= q^2 e^2 - d^2 / 4, and
   T^K gains at least lr mu K e / 4 + d^2 / (16 e) >= d sqrt(lr mu K) / 4. Half of that is at least
   2 lr L K^2 d.
"""

from __future__ import annotations

import numpy as np

from fedsys.core.constants import Constants


def step(c: Constants, K: int) -> float:
    """Return min{2 mu/L^2, 1/(2 mu K), root of L^4 K^4 t^3 + 2 L^2 K^2 t - mu K} / 2."""
    mu, L = c.mu, c.L
    roots = np.roots([(L * K) ** 4, 0.0, 2 * (L * K) ** 2, -mu * K])
    positive = [r.real for r in roots if abs(r.imag) < 1e-9 * abs(r) and r.real > 0]
    smallest = min(positive, default=0.0)  # no step is small enough for mu = 0
    return 0.5 * min(2 * mu / L**2, 1 / (2 * mu * K), float(smallest))
