"""Local SEG (Beznosikov et al. 2020): only the full point is averaged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transcriptions.lsgd import Operator


def local_seg(
    F: Operator, z0: np.ndarray, clients: int, steps: int, lr: float, local_steps: int
) -> Iterator[dict[str, np.ndarray]]:
    """Two independent samples in every step."""
    z = [z0 for _ in range(clients)]
    for t in range(steps):
        for i in range(clients):
            half = z[i] - lr * F(i, z[i], t, 0)
            z[i] = z[i] - lr * F(i, half, t, 1)
        if (t + 1) % local_steps == 0:
            z = [sum(z) / clients for _ in range(clients)]
        yield {"z": np.stack(z)}
