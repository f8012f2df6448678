"""LIPPAX and SLIPPAX (Wang and Kale, 2026, Algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from transcriptions.lsgd import Operator

Gaussian = Callable[[int, int, int], np.ndarray]
"""s(m, t, k): a standard normal vector."""


def lippax(
    V: Operator,
    z0: np.ndarray,
    machines: int,
    steps: int,
    eta: float,
    gamma: float,
    H: int,
    local_steps: int,
    delta: float = 0.0,
    s: Gaussian | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """With delta > 0 the inner steps ask V at x + delta s: a second draw in each of them."""
    draws = 1 if s is None else 2
    z = [z0 for _ in range(machines)]
    visited: list[np.ndarray] = []
    for t in range(steps):
        x = list(z)
        for m in range(machines):
            for inner in range(H):
                at = x[m] if s is None else x[m] + delta * s(m, t, draws * inner + 1)
                step = V(m, at, t, draws * inner) + (x[m] - z[m]) / eta
                x[m] = x[m] - gamma * step
        z = [z[m] - eta * V(m, x[m], t, draws * H) for m in range(machines)]
        if (t + 1) % local_steps == 0:
            z = [sum(z) / machines for _ in range(machines)]
        visited.append(np.stack(x))
        yield {"z": np.stack(z), "x_o": np.mean(visited, axis=0)}
