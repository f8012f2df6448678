"""Local dual extrapolation (Wang and Kale, 2026, eq. 13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from transcriptions.lsgd import Operator

Mirror = Callable[[np.ndarray, float], np.ndarray]
"""The gradient of the conjugate of h_t = h + t eta phi, at a dual point, for the weight t eta."""


def identity(dual: np.ndarray, weight: float) -> np.ndarray:
    """For h = |.|^2 / 2 and no phi."""
    return dual


def lde(
    V: Operator,
    z0: np.ndarray,
    machines: int,
    steps: int,
    lr: float,
    local_steps: int,
    mirror: Mirror = identity,
) -> Iterator[dict[str, np.ndarray]]:
    """Dual variables x and z; u and v are their primal points. t counts from 0, the paper's from 1.

    u_{t-1} is the map with h_{t-1}, the one of the step before.
    """
    z = [z0 for _ in range(machines)]
    u = [mirror(z0, 0.0) for _ in range(machines)]
    visited: list[np.ndarray] = []
    for t in range(steps):
        communicate = (t + 1) % local_steps == 0
        x = [z[m] - lr * V(m, u[m], t, 0) for m in range(machines)]
        if communicate:
            x = [sum(x) / machines for _ in range(machines)]
        v = [mirror(x[m], (t + 1) * lr) for m in range(machines)]
        z = [z[m] - lr * V(m, v[m], t, 1) for m in range(machines)]
        if communicate:
            z = [sum(z) / machines for _ in range(machines)]
        u = [mirror(z[m], (t + 1) * lr) for m in range(machines)]
        visited.append(np.stack(v))
        yield {"z": np.stack(z), "u": np.stack(u), "x_o": np.mean(visited, axis=0)}
