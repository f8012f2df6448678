"""LSGD (Wang and Kale, 2026, eq. 11); with K = 1 it is GDA on the mean operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

Operator = Callable[[int, np.ndarray, int, int], np.ndarray]
"""V(m, z, t, k): machine m's operator at z with the k-th sample of iteration t."""


def lsgd(
    V: Operator, z0: np.ndarray, machines: int, steps: int, lr: float, local_steps: int
) -> Iterator[dict[str, np.ndarray]]:
    """The iterates, and the running average x_o."""
    z = [z0 for _ in range(machines)]
    visited: list[np.ndarray] = []
    for t in range(steps):
        z = [z[m] - lr * V(m, z[m], t, 0) for m in range(machines)]
        if (t + 1) % local_steps == 0:
            z = [sum(z) / machines for _ in range(machines)]
        visited.append(np.stack(z))
        yield {"z": np.stack(z), "x_o": np.mean(visited, axis=0)}
