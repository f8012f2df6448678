"""Local SGDA (Deng and Mahdavi 2021, Algorithm 1), unconstrained."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


def local_sgda(
    gradients: Callable[[int, np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]],
    x0: np.ndarray,
    y0: np.ndarray,
    clients: int,
    steps: int,
    lr_x: float,
    lr_y: float,
    local_steps: int,
) -> Iterator[dict[str, np.ndarray]]:
    """`gradients(i, x, y, t)` are client i's stochastic gradients in x and y, of one sample."""
    x = [x0 for _ in range(clients)]
    y = [y0 for _ in range(clients)]
    for t in range(steps):
        for i in range(clients):
            gx, gy = gradients(i, x[i], y[i], t)  # both at the old point
            x[i] = x[i] - lr_x * gx
            y[i] = y[i] + lr_y * gy
        if (t + 1) % local_steps == 0:
            x_server, y_server = sum(x) / clients, sum(y) / clients
            x = [x_server for _ in range(clients)]
            y = [y_server for _ in range(clients)]
        yield {"x": np.stack(x), "y": np.stack(y)}
