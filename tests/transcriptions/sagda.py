"""SAGDA (Yang et al. 2022), written by rounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transcriptions.gradients import Gradients, mean


def sagda(
    G: Gradients,
    x0: np.ndarray,
    y0: np.ndarray,
    n: int,
    steps: int,
    lr_x: float,
    lr_y: float,
    server_lr: float,
    K: int,
    first: int,
    anew: bool = False,
) -> Iterator[dict[str, np.ndarray]]:
    """`anew`: the subtracted gradient is taken with the sample of each step."""
    x_r, y_r = x0, y0
    t, sample = 0, (0, first)
    while t < steps:
        initial = [G(i, x_r, y_r, *sample) for i in range(n)]
        vx, vy = mean([gx for gx, _ in initial]), mean([gy for _, gy in initial])
        x, y = [x_r] * n, [y_r] * n
        for _ in range(min(K, steps - t)):
            for i in range(n):
                gx, gy = G(i, x[i], y[i], t, 0)
                own_x, own_y = G(i, x_r, y_r, t, 0) if anew else initial[i]
                x[i] = x[i] - lr_x * (gx - own_x + vx)
                y[i] = y[i] + lr_y * (gy - own_y + vy)
            t += 1
            if t % K == 0:
                x_r = x_r + server_lr * mean([x[i] - x_r for i in range(n)])
                y_r = y_r + server_lr * mean([y[i] - y_r for i in range(n)])
                x, y, sample = [x_r] * n, [y_r] * n, (t - 1, 1)
            yield {"x": np.stack(x), "y": np.stack(y)}
