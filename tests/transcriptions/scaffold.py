"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1) with all clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


def scaffold(
    gradient: Callable[[int, np.ndarray, int, int], np.ndarray],
    x0: np.ndarray,
    N: int,
    steps: int,
    lr: float,
    lr_server: float,
    local_steps: int,
    option: int,
) -> Iterator[dict[str, np.ndarray]]:
    """`gradient(i, x, t, k)`: client i's, with the k-th draw of iteration t."""
    x, c = x0, np.zeros_like(x0)
    y, c_i = [x0] * N, [np.zeros_like(x0)] * N
    for t in range(steps):
        for i in range(N):
            y[i] = y[i] - lr * (gradient(i, y[i], t, 0) - c_i[i] + c)
        if (t + 1) % local_steps == 0:
            if option == 1:
                new = [gradient(i, x, t, 1) for i in range(N)]
            else:
                new = [c_i[i] - c + (x - y[i]) / (local_steps * lr) for i in range(N)]
            x = x + lr_server * sum(y[i] - x for i in range(N)) / N
            c = c + sum(new[i] - c_i[i] for i in range(N)) / N
            y, c_i = [x] * N, new
        yield {"y": np.stack(y), "x": np.stack([x] * N), "c_i": np.stack(c_i)}
