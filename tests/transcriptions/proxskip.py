"""ProxSkip-VIP-FL and ProxSkip-L-SVRGDA-FL (Zhang et al., ICLR 2024, Algorithms 2 and 4).

The last line has p / gamma, as Algorithms 1 and 4 do; Algorithm 2 prints p / 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from transcriptions.lsgd import Operator

Coin = Callable[[int], bool]
"""theta(t) or zeta(t): what the server's coin shows in iteration t."""


def proxskip(
    g: Operator, x0: np.ndarray, n: int, steps: int, gamma: float, p: float, theta: Coin
) -> Iterator[dict[str, np.ndarray]]:
    """Algorithm 2 with h_0 = 0."""
    x, h = [x0] * n, [np.zeros_like(x0)] * n
    for t in range(steps):
        estimates = [g(i, x[i], t, 0) for i in range(n)]
        x, h = _update(x, h, estimates, gamma, p, theta(t))
        yield {"x": np.stack(x), "h": np.stack(h)}


def proxskip_lsvrgda(
    F_ij: Operator,
    F_i: Callable[[int, np.ndarray], np.ndarray],
    x0: np.ndarray,
    n: int,
    steps: int,
    gamma: float,
    p: float,
    theta: Coin,
    zeta: Coin,
) -> Iterator[dict[str, np.ndarray]]:
    """Algorithm 4: w is x before the step when zeta says so."""
    x, h, w = [x0] * n, [np.zeros_like(x0)] * n, [x0] * n
    for t in range(steps):
        g = [F_ij(i, x[i], t, 0) - F_ij(i, w[i], t, 0) + F_i(i, w[i]) for i in range(n)]
        if zeta(t):
            w = list(x)
        x, h = _update(x, h, g, gamma, p, theta(t))
        yield {"x": np.stack(x), "h": np.stack(h), "w": np.stack(w)}


def _update(
    x: list[np.ndarray],
    h: list[np.ndarray],
    g: list[np.ndarray],
    gamma: float,
    p: float,
    communicate: bool,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    n = len(x)
    hat = [x[i] - gamma * (g[i] - h[i]) for i in range(n)]
    new = list(hat)
    if communicate:
        server = sum(hat[i] - gamma / p * h[i] for i in range(n)) / n
        new = [server] * n
    return new, [h[i] + p / gamma * (new[i] - hat[i]) for i in range(n)]
