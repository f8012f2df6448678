"""FGDA and AdaFGDA (Huang et al., AISTATS 2024, Algorithm 1), with four readings of the sync.

As in the paper t counts from 1; the sample of iteration t is that of step t - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from transcriptions.gradients import Gradients, mean

Rate = Callable[[int], float]


class Identity:
    """A_t = I: FGDA."""

    def generate(self, t: int, w: np.ndarray) -> np.ndarray:
        return np.ones_like(w)

    def keep(self, t: int) -> None:
        """Line 12: A_{t+1} = A_t."""


class Adam:
    """Line 6: a_0 = 0, a_t = varrho a_{t-1} + (1 - varrho) w_t^2, A_t = diag(sqrt(a_t) + rho).

    a is indexed by t, as printed: what line 6 computes at t = 1 is made of a_0, whatever line 2
    generated before.
    """

    def __init__(self, varrho: float, rho: float) -> None:
        self.varrho, self.rho = varrho, rho
        self.a: dict[int, np.ndarray | float] = {0: 0.0}

    def generate(self, t: int, w: np.ndarray) -> np.ndarray:
        self.a[t] = self.varrho * self.a[t - 1] + (1 - self.varrho) * w**2
        return np.sqrt(self.a[t]) + self.rho

    def keep(self, t: int) -> None:
        """Line 12: the matrix, and so what it is made of, stays until the next average."""
        self.a[t + 1] = self.a[t]


class AdaBelief(Adam):
    """Section 4: (w_t - w_{t0})^2 in place of w_t^2, t0 the last time matrices were generated."""

    def __init__(self, varrho: float, rho: float) -> None:
        super().__init__(varrho, rho)
        self.last: dict[int, np.ndarray | float] = {0: 0.0}

    def generate(self, t: int, w: np.ndarray) -> np.ndarray:
        self.last[t] = w
        return super().generate(t, w - self.last[t - 1])

    def keep(self, t: int) -> None:
        super().keep(t)
        self.last[t + 1] = self.last[t]


IDENTITY = Identity()


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
    matrix_x: Identity | Adam = IDENTITY,
    matrix_y: Identity | Adam = IDENTITY,
) -> Iterator[dict[str, np.ndarray]]:
    """`first` is the number of the first draw of the initialisation."""
    x, y = [x1] * K, [y1] * K
    samples = [[G(k, x1, y1, 0, first + j) for j in range(q)] for k in range(K)]
    w = [mean([gx for gx, _ in own]) for own in samples]
    v = [mean([gy for _, gy in own]) for own in samples]
    A, B = matrix_x.generate(1, mean(w)), matrix_y.generate(1, mean(v))
    for t in range(1, steps + 1):
        own_x, own_y, synchronises = list(x), list(y), t % q == 0
        if synchronises:
            x, y, w, v = ([mean(u)] * K for u in (x, y, w, v))
            A, B = matrix_x.generate(t, w[0]), matrix_y.generate(t, v[0])
        matrix_x.keep(t)
        matrix_y.keep(t)
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
        if matrix_x is not IDENTITY:
            fields |= {"A": [A] * K, "B": [B] * K}
        yield {name: np.stack(rows) for name, rows in fields.items()}
