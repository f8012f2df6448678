"""Local SEG (Beznosikov et al. 2020): only the full point is averaged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transcriptions.lsgd import Operator


def local_seg(
    F: Operator, z0: np.ndarray, clients: int, steps: int, lr: float, local_steps: int
) -> Iterator[dict[str, np.ndarray]]:
    """Two independent samples in every step; x_o is the mean of the half points so far."""
    z = [z0 for _ in range(clients)]
    halves: list[np.ndarray] = []
    for t in range(steps):
        half = [z[i] - lr * F(i, z[i], t, 0) for i in range(clients)]
        z = [z[i] - lr * F(i, half[i], t, 1) for i in range(clients)]
        halves.append(np.stack(half))
        if (t + 1) % local_steps == 0:
            z = [sum(z) / clients for _ in range(clients)]
        yield {"z": np.stack(z), "x_o": np.mean(halves, axis=0)}
