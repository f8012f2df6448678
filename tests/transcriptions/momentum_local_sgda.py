"""Momentum Local SGDA (Sharma et al. 2022), and its + form if there is a period S of snapshots."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transcriptions.gradients import Gradients, mean


def momentum_local_sgda(
    G: Gradients,
    x0: np.ndarray,
    y0: np.ndarray,
    n: int,
    steps: int,
    eta_x: float,
    eta_y: float,
    alpha: float,
    beta: float,
    K: int,
    first: int,
    S: int | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """`first` is the number of the first draw of the initialisation."""
    x, y, snapshot = [x0] * n, [y0] * n, x0
    d = [G(i, x0, y0, 0, first) for i in range(n)]
    dx, dy = [gx for gx, _ in d], [gy for _, gy in d]
    for t in range(steps):
        for i in range(n):
            x[i] = x[i] + alpha * ((x[i] - eta_x * dx[i]) - x[i])
            y[i] = y[i] + alpha * ((y[i] + eta_y * dy[i]) - y[i])
            gx, gy = G(i, x[i], y[i], t, 0)
            if S is not None:
                gy = G(i, snapshot, y[i], t, 0)[1]
            dx[i] = (1 - beta * alpha) * dx[i] + beta * alpha * gx
            dy[i] = (1 - beta * alpha) * dy[i] + beta * alpha * gy
        if (t + 1) % K == 0:
            x, y, dx, dy = ([mean(u)] * n for u in (x, y, dx, dy))
        if S is not None and (t + 1) % S == 0:
            snapshot = x[0]
        yield {"x": np.stack(x), "y": np.stack(y), "dx": np.stack(dx), "dy": np.stack(dy)}
