"""LocalSCGDAM (Zhang et al., NeurIPS 2023, Algorithm 1); eta_t and gamma_t may depend on t."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]


def localscgdam(
    inner: Callable[[int, np.ndarray, int], Pair],
    outer: Callable[[int, np.ndarray, np.ndarray, int], Pair],
    x0: np.ndarray,
    y0: np.ndarray,
    K: int,
    T: int,
    p: int,
    alpha: float,
    beta_x: float,
    beta_y: float,
    eta: Callable[[int], float],
    gamma_x: Callable[[int], float],
    gamma_y: Callable[[int], float],
) -> Iterator[dict[str, np.ndarray]]:
    """`inner(k, x, t)`: g and its Jacobian; `outer(k, z, y, t)`: gradients; t = -1 at the start."""
    x, y = [x0] * K, [y0] * K
    h, u, v = [x0] * K, [x0] * K, [y0] * K
    for k in range(K):
        h[k], jacobian = inner(k, x[k], -1)
        f_z, v[k] = outer(k, h[k], y[k], -1)
        u[k] = jacobian.T @ f_z
    for t in range(T):
        for k in range(K):
            x[k] = x[k] - gamma_x(t) * eta(t) * u[k]
            y[k] = y[k] + gamma_y(t) * eta(t) * v[k]
            g, jacobian = inner(k, x[k], t)
            h[k] = (1 - alpha * eta(t)) * h[k] + alpha * eta(t) * g
            f_z, f_y = outer(k, h[k], y[k], t)
            u[k] = (1 - beta_x * eta(t)) * u[k] + beta_x * eta(t) * jacobian.T @ f_z
            v[k] = (1 - beta_y * eta(t)) * v[k] + beta_y * eta(t) * f_y
        if (t + 1) % p == 0:
            h, u, v, x, y = ([sum(field) / K] * K for field in (h, u, v, x, y))
        fields = {"h": h, "u": u, "v": v, "x": x, "y": y}
        yield {name: np.stack(rows) for name, rows in fields.items()}
