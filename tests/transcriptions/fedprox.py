"""FedProx (Li et al. 2020, Algorithm 2) with gradient steps, all clients and uniform weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


def fedprox(
    gradient: Callable[[int, np.ndarray, int], np.ndarray],
    x0: np.ndarray,
    clients: int,
    steps: int,
    lr: float,
    mu: float,
    local_steps: int,
) -> Iterator[dict[str, np.ndarray]]:
    """`gradient(i, x, t)` is client i's stochastic gradient in iteration t."""
    server, x = x0, [x0] * clients
    for t in range(steps):
        for i in range(clients):
            x[i] = x[i] - lr * (gradient(i, x[i], t) + mu * (x[i] - server))
        if (t + 1) % local_steps == 0:
            server = sum(x) / clients
            x = [server] * clients
        yield {"x": np.stack(x)}
