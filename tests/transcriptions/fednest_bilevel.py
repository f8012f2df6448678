"""FEDNEST, bilevel form (Tarzanagh et al. 2022): FEDINN, FEDIHGP as a sum, and FEDOUT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

import numpy as np

from transcriptions.gradients import mean


class Derivatives(NamedTuple):
    """Client i's derivatives at (x, y) with the k-th sample of a step."""

    inner: np.ndarray
    outer_x: np.ndarray
    outer_y: np.ndarray
    hessian: np.ndarray
    cross: np.ndarray


At = Callable[[int, np.ndarray, np.ndarray, int, int], Derivatives]
"""D(i, x, y, t, k); cross is grad_xy g [dx, dy]."""


def fednest_bilevel(
    D: At,
    x0: np.ndarray,
    y0: np.ndarray,
    m: int,
    steps: int,
    alpha: float,
    beta: float,
    T: int,
    N: int,
    ell: float,
    tau: int,
) -> Iterator[dict[str, np.ndarray]]:
    """`ell`: the smoothness constant of g; the step of the series is 1 / ell."""
    x, y = x0, y0
    for t in range(steps):
        draws = count()
        for _ in range(T):  # FEDINN
            k = next(draws)
            q = mean([D(i, x, y, t, k).inner for i in range(m)])
            y_i = [y] * m
            for _ in range(tau):
                k = next(draws)
                for i in range(m):
                    q_i = D(i, x, y_i[i], t, k).inner - D(i, x, y, t, k).inner + q
                    y_i[i] = y_i[i] - beta * q_i
            y = mean(y_i)
        outer = next(draws)
        p = mean([D(i, x, y, t, outer).outer_y for i in range(m)])  # FEDIHGP
        total = p
        for _ in range(1, N):
            k = next(draws)
            p = mean([p - D(i, x, y, t, k).hessian @ p / ell for i in range(m)])
            total = total + p
        p = total / ell
        k = next(draws)  # FEDOUT
        h = mean([D(i, x, y, t, outer).outer_x - D(i, x, y, t, k).cross @ p for i in range(m)])
        x_i = [x] * m
        for _ in range(tau):
            k = next(draws)
            for i in range(m):
                change = D(i, x_i[i], y, t, k).outer_x - D(i, x, y, t, k).outer_x
                x_i[i] = x_i[i] - alpha * (change + h)
        x = mean(x_i)
        yield {"x": np.stack([x] * m), "y": np.stack([y] * m)}
