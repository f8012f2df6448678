"""LocalSGDAM: Momentum Local SGDA (Sharma et al. 2022) in the letters of LocalSCGDAM."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


def localsgdam(
    gradients: Callable[[int, np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]],
    x0: np.ndarray,
    y0: np.ndarray,
    K: int,
    T: int,
    p: int,
    eta: float,
    gamma_x: float,
    gamma_y: float,
    beta_x: float,
    beta_y: float,
) -> Iterator[dict[str, np.ndarray]]:
    """`gradients(k, x, y, t)` are client k's stochastic gradients; t = -1 at the start."""
    x, y = [x0] * K, [y0] * K
    first = [gradients(k, x0, y0, -1) for k in range(K)]
    u, v = [gx for gx, _ in first], [gy for _, gy in first]
    for t in range(T):
        for k in range(K):
            x[k] = x[k] - gamma_x * eta * u[k]
            y[k] = y[k] + gamma_y * eta * v[k]
            gx, gy = gradients(k, x[k], y[k], t)
            u[k] = (1 - beta_x * eta) * u[k] + beta_x * eta * gx
            v[k] = (1 - beta_y * eta) * v[k] + beta_y * eta * gy
        if (t + 1) % p == 0:
            u, v, x, y = ([sum(field) / K] * K for field in (u, v, x, y))
        yield {"u": np.stack(u), "v": np.stack(v), "x": np.stack(x), "y": np.stack(y)}
