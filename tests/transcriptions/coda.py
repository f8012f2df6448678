"""CoDA (Guo et al. 2020, Algorithms 1 and 2) without the dual restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


def coda(
    gradients: Callable[[int, np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]],
    x0: np.ndarray,
    y0: np.ndarray,
    K: int,
    stages: list[tuple[int, float]],
    local_steps: int,
    gamma: float,
    output: str,
) -> Iterator[dict[str, np.ndarray]]:
    """`stages` are pairs of a number of steps and a step size."""
    x, y, t = [x0] * K, [y0] * K, 0
    for length, eta in stages:
        centre = x[0]
        iterates = []
        for step in range(length):
            for k in range(K):
                gx, gy = gradients(k, x[k], y[k], t)
                # argmin of <gx, v> + ||v - centre||^2 / (2 gamma) + ||v - x||^2 / (2 eta)
                x[k] = (x[k] - eta * gx + eta / gamma * centre) / (1 + eta / gamma)
                y[k] = y[k] + eta * gy
            iterates.append(sum(x) / K)
            if (t + 1) % local_steps == 0:
                x, y = [sum(x) / K] * K, [sum(y) / K] * K
            if step == length - 1 and output == "average":
                x = [sum(iterates) / length] * K
            t += 1
            yield {"x": np.stack(x), "y": np.stack(y)}
