"""FedGDA-GT (Sun and Wei 2022): gradient tracking with full operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


def fedgda_gt(
    F: Callable[[int, np.ndarray], np.ndarray],
    z0: np.ndarray,
    clients: int,
    steps: int,
    lr: float,
    local_steps: int,
) -> Iterator[dict[str, np.ndarray]]:
    """`F(i, z)` is client i's full operator; G_i are those at the start of the round."""
    z = [z0 for _ in range(clients)]
    for t in range(steps):
        if t % local_steps == 0:
            G = [F(i, z[i]) for i in range(clients)]
            G_mean = sum(G) / clients
        z = [z[i] - lr * (F(i, z[i]) - G[i] + G_mean) for i in range(clients)]
        if (t + 1) % local_steps == 0:
            z = [sum(z) / clients for _ in range(clients)]
        yield {"z": np.stack(z)}
