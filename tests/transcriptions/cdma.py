"""CDMA-ADA (Xie et al. 2023), written by rounds; CDMA-ONE is e = 0 and a0 = 1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transcriptions.gradients import FullGradients, Gradients, mean


def cdma(
    G: Gradients,
    full: FullGradients | None,
    x0: np.ndarray,
    y0: np.ndarray,
    n: int,
    steps: int,
    lr_x: float,
    lr_y: float,
    e: float,
    a0: float,
    K: int,
    first: int,
) -> Iterator[dict[str, np.ndarray]]:
    """`full`: the gradients of the estimate; None for those of one sample."""
    x_r = x_before = x0
    y_r = y_before = y0
    u_before, v_before = np.zeros_like(x0), np.zeros_like(y0)
    t, r, sample = 0, 0, (0, first)
    while t < steps:
        a = min(a0 / (r + 1) ** (2 * e), 1.0) if r > 0 else 1.0
        now = [full(i, x_r, y_r) if full else G(i, x_r, y_r, *sample) for i in range(n)]
        before = x_before, y_before
        then = [full(i, *before) if full else G(i, *before, *sample) for i in range(n)]
        u = mean([g[0] - (1 - a) * old[0] for g, old in zip(now, then, strict=True)])
        v = mean([g[1] - (1 - a) * old[1] for g, old in zip(now, then, strict=True)])
        u, v = u + (1 - a) * u_before, v + (1 - a) * v_before
        x, y, c = [x_r] * n, [y_r] * n, (r + 1) ** -e
        x_before, y_before, u_before, v_before = x_r, y_r, u, v
        for _ in range(min(K, steps - t)):
            for i in range(n):
                gx, gy = G(i, x[i], y[i], t, 0)
                own_x, own_y = G(i, x_r, y_r, t, 0)
                x[i] = x[i] - c * lr_x * (gx - own_x + u)
                y[i] = y[i] + c * lr_y * (gy - own_y + v)
            t += 1
            if t % K == 0:
                x_r, y_r, r, sample = mean(x), mean(y), r + 1, (t - 1, 1)
                x, y = [x_r] * n, [y_r] * n
            yield {"x": np.stack(x), "y": np.stack(y)}
