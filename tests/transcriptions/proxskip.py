"""ProxSkip-VIP-FL and ProxSkip-L-SVRGDA-FL (Zhang et al., ICLR 2024, Algorithms 2 and 4).

Also the same with other estimators, and Algorithms 1 and 3 for one node with a proximal map.

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


def proxskip_with(
    estimates: Callable[[list[np.ndarray], int], list[np.ndarray]],
    x0: np.ndarray,
    n: int,
    steps: int,
    gamma: float,
    p: float,
    theta: Coin,
) -> Iterator[dict[str, np.ndarray]]:
    """Algorithm 2 with estimates(x, t), a list of g_{i,t} that may have a memory."""
    x, h = [x0] * n, [np.zeros_like(x0)] * n
    for t in range(steps):
        x, h = _update(x, h, estimates(x, t), gamma, p, theta(t))
        yield {"x": np.stack(x), "h": np.stack(h)}


def saga(
    F_ij: Callable[[int, int, np.ndarray], np.ndarray],
    drawn: Callable[[int, int], list[int]],
    m: int,
    x0: np.ndarray,
    n: int,
) -> Callable[[list[np.ndarray], int], list[np.ndarray]]:
    """g_i = mean over the drawn j of F_ij(x) - phi_ij, plus the mean of the table phi_i."""
    phi = [[F_ij(i, j, x0) for j in range(m)] for i in range(n)]

    def estimates(x: list[np.ndarray], t: int) -> list[np.ndarray]:
        found = []
        for i in range(n):
            j_t = drawn(i, t)
            mean = sum(phi[i]) / m
            found.append(sum(F_ij(i, j, x[i]) - phi[i][j] for j in j_t) / len(j_t) + mean)
            for j in j_t:
                phi[i][j] = F_ij(i, j, x[i])
        return found

    return estimates


def quantised(v: np.ndarray, s: int, u: np.ndarray) -> np.ndarray:
    """QSGD, coordinate by coordinate: level l or l + 1 with probability s |v_k| / ||v|| - l."""
    norm = float(np.sqrt((v**2).sum()))
    found = np.zeros_like(v)
    for k in range(len(v)):
        a = s * abs(v[k]) / norm
        level = int(np.floor(a))
        if u[k] >= 1 - (a - level):
            level += 1
        found[k] = norm * np.sign(v[k]) * level / s
    return found


def proxskip_vip(
    g: Callable[[np.ndarray, int], np.ndarray],
    prox: Callable[[np.ndarray, float], np.ndarray],
    x0: np.ndarray,
    steps: int,
    gamma: float,
    p: float,
    theta: Coin,
) -> Iterator[dict[str, np.ndarray]]:
    """Algorithm 1, and Algorithm 3 if g has a reference point: one node and a general prox."""
    x, h = x0, np.zeros_like(x0)
    for t in range(steps):
        hat = x - gamma * (g(x, t) - h)
        x = prox(hat - gamma / p * h, gamma / p) if theta(t) else hat
        h = h + p / gamma * (x - hat)
        yield {"x": x[None], "h": h[None]}


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
