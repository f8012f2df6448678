"""FedAvg (McMahan et al. 2017, Algorithm 1) with all clients and uniform weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


def fedavg(
    gradient: Callable[[int, np.ndarray, int], np.ndarray],
    x0: np.ndarray,
    clients: int,
    steps: int,
    lr: float,
    local_steps: int,
) -> Iterator[dict[str, np.ndarray]]:
    """`gradient(i, x, t)` is client i's stochastic gradient in iteration t."""
    x = [x0 for _ in range(clients)]
    for t in range(steps):
        for i in range(clients):
            x[i] = x[i] - lr * gradient(i, x[i], t)
        if (t + 1) % local_steps == 0:
            server = sum(x) / clients
            x = [server for _ in range(clients)]
        yield {"x": np.stack(x)}
