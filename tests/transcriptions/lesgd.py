"""LESGD (Wang and Kale, 2026, eq. 4); with K = 1 it is extra-gradient."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transcriptions.lsgd import Operator


def lesgd(
    V: Operator, z0: np.ndarray, machines: int, steps: int, lr: float, local_steps: int
) -> Iterator[dict[str, np.ndarray]]:
    """Both cases of eq. (4): x_t is averaged before V is asked at it, then z_t is."""
    z = [z0 for _ in range(machines)]
    visited: list[np.ndarray] = []
    for t in range(steps):
        communicate = (t + 1) % local_steps == 0
        x = [z[m] - lr * V(m, z[m], t, 0) for m in range(machines)]
        if communicate:
            x = [sum(x) / machines for _ in range(machines)]
        z = [z[m] - lr * V(m, x[m], t, 1) for m in range(machines)]
        if communicate:
            z = [sum(z) / machines for _ in range(machines)]
        visited.append(np.stack(x))
        yield {"z": np.stack(z), "x_o": np.mean(visited, axis=0)}
