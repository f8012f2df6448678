"""FGDA and AdaFGDA (adafgda.txt, Algorithm 1), with the four readings of the synchronisation step.

As in the paper t counts from 1; the sample of iteration t is that of step t - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from transcriptions.gradients import Gradients, mean

Rate = Callable[[int], float]
Matrix = Callable[[np.ndarray], np.ndarray]
"""The diagonal of a round from its averaged estimator; it remembers the rounds before."""


def identity(w: np.ndarray) -> np.ndarray:
    return np.ones_like(w)


def adam(varrho: float, rho: float) -> Matrix:
    a = 0.0

    def matrix(w: np.ndarray) -> np.ndarray:
        nonlocal a
        a = varrho * a + (1 - varrho) * w**2
        return np.sqrt(a) + rho

    return matrix


def adabelief(varrho: float, rho: float) -> Matrix:
    a, w_before = 0.0, 0.0

    def matrix(w: np.ndarray) -> np.ndarray:
        nonlocal a, w_before
        a = varrho * a + (1 - varrho) * (w - w_before) ** 2
        w_before = w
        return np.sqrt(a) + rho

    return matrix


def fgda(
    G: Gradients,
    x1: np.ndarray,
    y1: np.ndarray,
    K: int,
    steps: int,
    q: int,
    gamma: float,
    lam: float,
    eta: Rate,
    alpha: Rate,
    beta: Rate,
    first: int,
    reading: str = "average",
    matrix_x: Matrix = identity,
    matrix_y: Matrix = identity,
) -> Iterator[dict[str, np.ndarray]]:
    """`first` is the number of the first draw of the initialisation."""
    x, y = [x1] * K, [y1] * K
    samples = [[G(k, x1, y1, 0, first + j) for j in range(q)] for k in range(K)]
    w = [mean([gx for gx, _ in own]) for own in samples]
    v = [mean([gy for _, gy in own]) for own in samples]
    A, B = matrix_x(mean(w)), matrix_y(mean(v))
    for t in range(1, steps + 1):
        own_x, own_y, synchronises = list(x), list(y), t % q == 0
        if synchronises:
            x, y, w, v = ([mean(u)] * K for u in (x, y, w, v))
            A, B = matrix_x(w[0]), matrix_y(v[0])
        old = list(zip(own_x, own_y, strict=True))
        if reading == "storm-mean":
            old = list(zip(x, y, strict=True))
        x = [x[k] + eta(t) * ((x[k] - gamma * w[k] / A) - x[k]) for k in range(K)]
        y = [y[k] + eta(t) * ((y[k] + lam * v[k] / B) - y[k]) for k in range(K)]
        if not (synchronises and reading == "carry"):
            for k in range(K):
                new_x, new_y = G(k, x[k], y[k], t - 1, 0)
                old_x, old_y = G(k, *old[k], t - 1, 0)
                w[k] = new_x + (1 - beta(t)) * (w[k] - old_x)
                v[k] = new_y + (1 - alpha(t)) * (v[k] - old_y)
        if synchronises and reading == "average":
            w, v = [mean(w)] * K, [mean(v)] * K
        fields = {"x": x, "y": y, "w": w, "v": v}
        if matrix_x is not identity:
            fields |= {"A": [A] * K, "B": [B] * K}
        yield {name: np.stack(rows) for name, rows in fields.items()}
