"""CODASCA (Yuan et al. 2021): control variates inside stages with a proximal centre."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transcriptions.gradients import Gradients, mean


def codasca(
    G: Gradients,
    x0: np.ndarray,
    y0: np.ndarray,
    n: int,
    steps: int,
    lr_x: float,
    lr_y: float,
    gamma: float,
    T0: int,
    K: int,
) -> Iterator[dict[str, np.ndarray]]:
    x, y, centre = [x0] * n, [y0] * n, x0
    c_x, c_y = [np.zeros_like(x0)] * n, [np.zeros_like(y0)] * n
    raw: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(n)]
    visited: list[np.ndarray] = []
    for t in range(steps):
        eta = 3.0 ** -(t // T0)
        mean_x, mean_y = mean(c_x), mean(c_y)
        for i in range(n):
            gx, gy = G(i, x[i], y[i], t, 0)
            raw[i].append((gx, gy))
            x[i] = x[i] - eta * lr_x * (gx - c_x[i] + mean_x + (x[i] - centre) / gamma)
            y[i] = y[i] + eta * lr_y * (gy - c_y[i] + mean_y)
        visited.append(mean(x))
        if (t + 1) % K == 0:
            c_x = [mean([gx for gx, _ in own]) for own in raw]
            c_y = [mean([gy for _, gy in own]) for own in raw]
            raw = [[] for _ in range(n)]
            x, y = [mean(x)] * n, [mean(y)] * n
        if (t + 1) % T0 == 0:
            centre, visited = mean(visited), []
        yield {"x": np.stack(x), "y": np.stack(y), "centre": np.stack([centre] * n)}
