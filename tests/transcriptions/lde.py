"""Local dual extrapolation (faster-rates-federated-vi.txt, eq. 13), h = |.|^2 / 2 and no phi.

The mirror map is the identity then: dual and primal points are the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transcriptions.lsgd import Operator


def lde(
    V: Operator, z0: np.ndarray, machines: int, steps: int, lr: float, local_steps: int
) -> Iterator[dict[str, np.ndarray]]:
    """Dual variables x and z; u and v are their primal points."""
    z = [z0 for _ in range(machines)]
    u = list(z)
    visited: list[np.ndarray] = []
    for t in range(steps):
        communicate = (t + 1) % local_steps == 0
        x = [z[m] - lr * V(m, u[m], t, 0) for m in range(machines)]
        if communicate:
            x = [sum(x) / machines for _ in range(machines)]
        v = list(x)
        z = [z[m] - lr * V(m, v[m], t, 1) for m in range(machines)]
        if communicate:
            z = [sum(z) / machines for _ in range(machines)]
        u = list(z)
        visited.append(np.stack(v))
        yield {"z": np.stack(z), "u": np.stack(u), "v_o": np.mean(visited, axis=0)}
