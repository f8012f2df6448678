"""Local SGDA+ (Deng and Mahdavi 2021): the ascent uses a snapshot of x, renewed every S steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transcriptions.gradients import Gradients, mean


def local_sgda_plus(
    G: Gradients,
    x0: np.ndarray,
    y0: np.ndarray,
    n: int,
    steps: int,
    lr_x: float,
    lr_y: float,
    K: int,
    S: int,
) -> Iterator[dict[str, np.ndarray]]:
    x, y, snapshot = [x0] * n, [y0] * n, x0
    for t in range(steps):
        for i in range(n):
            gx = G(i, x[i], y[i], t, 0)[0]
            gy = G(i, snapshot, y[i], t, 0)[1]
            x[i], y[i] = x[i] - lr_x * gx, y[i] + lr_y * gy
        if (t + 1) % K == 0:
            x, y = [mean(x)] * n, [mean(y)] * n
        if (t + 1) % S == 0:
            snapshot = x[0]
        yield {"x": np.stack(x), "y": np.stack(y), "snapshot": np.stack([snapshot] * n)}
