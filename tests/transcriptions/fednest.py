"""FEDNEST, min-max form (Tarzanagh et al. 2022): T times FEDINN on y, then FEDOUT on x."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from transcriptions.gradients import FullGradients, Gradients, mean


def fednest(
    G: Gradients,
    full: FullGradients | None,
    x0: np.ndarray,
    y0: np.ndarray,
    n: int,
    steps: int,
    alpha: float,
    beta: float,
    T: int,
    tau: int,
) -> Iterator[dict[str, np.ndarray]]:
    """`full`: the gradients of the means; None for those of one sample."""
    x, y = x0, y0
    for step in range(steps):
        draws = count()
        for _ in range(T):
            k = None if full else next(draws)
            q = mean([(full(i, x, y) if full else G(i, x, y, step, k))[1] for i in range(n)])
            y_i = [y] * n
            for _ in range(tau):
                k = next(draws)
                for i in range(n):
                    change = G(i, x, y_i[i], step, k)[1] - G(i, x, y, step, k)[1]
                    y_i[i] = y_i[i] + beta * (change + q)
            y = mean(y_i)
        k = None if full else next(draws)
        h = mean([(full(i, x, y) if full else G(i, x, y, step, k))[0] for i in range(n)])
        x_i = [x] * n
        for _ in range(tau):
            k = next(draws)
            for i in range(n):
                change = G(i, x_i[i], y, step, k)[0] - G(i, x, y, step, k)[0]
                x_i[i] = x_i[i] - alpha * (change + h)
        x = mean(x_i)
        yield {"x": np.stack([x] * n), "y": np.stack([y] * n)}
