"""LocalSGDM (Yu, Jin, Yang 2019, PR-SGD with momentum), and what else may become of momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


def localsgdm(
    gradient: Callable[[int, np.ndarray, int], np.ndarray],
    x0: np.ndarray,
    clients: int,
    steps: int,
    lr: Callable[[int], float],
    momentum: float,
    local_steps: int,
    momentum_sync: str,
) -> Iterator[dict[str, np.ndarray]]:
    """`gradient(i, x, t)` is client i's stochastic gradient in iteration t."""
    x, u = [x0] * clients, [np.zeros_like(x0)] * clients
    for t in range(steps):
        for i in range(clients):
            u[i] = momentum * u[i] + gradient(i, x[i], t)
            x[i] = x[i] - lr(t) * u[i]
        if (t + 1) % local_steps == 0:
            x = [sum(x) / clients] * clients
            if momentum_sync == "average":
                u = [sum(u) / clients] * clients
            if momentum_sync == "reset":
                u = [np.zeros_like(x0)] * clients
        yield {"x": np.stack(x), "u": np.stack(u)}
