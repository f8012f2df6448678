"""FedBiO and FedBiOAcc (Li et al., 2022, Algorithms 1 and 2); averages if t mod I = 0, t from 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

Fields = dict[str, np.ndarray]
InnerGrad = Callable[[int, np.ndarray, np.ndarray, int], np.ndarray]
"""omega(i, x, y, t): client i's grad_y g with the batch of iteration t."""


def neumann(
    grads: tuple[np.ndarray, np.ndarray],
    cross: np.ndarray,
    hessians: list[np.ndarray],
    eta: float,
) -> np.ndarray:
    """Eq. (4) word by word: grads of f, grad_xy g [dx, dy], H_1 ... H_Q."""
    gx, gy = grads
    Q, total = len(hessians), np.zeros_like(gy)
    for q in range(-1, Q):
        product = np.eye(len(gy))
        for j in range(Q - q, Q + 1):
            product = product @ (np.eye(len(gy)) - eta * hessians[j - 1])
        total = total + product @ gy
    return gx - eta * cross @ total


def mean(rows: list[np.ndarray]) -> list[np.ndarray]:
    average = sum(rows) / len(rows)
    return [average for _ in rows]


def fedbio(
    omega: InnerGrad,
    phi: InnerGrad,
    x1: np.ndarray,
    y1: np.ndarray,
    clients: int,
    steps: int,
    eta: float,
    gamma: float,
    local_steps: int,
    fit_from: int = 0,
    fit_lr: float = 0.0,
) -> Iterator[Fields]:
    x, y = [x1] * clients, [y1] * clients
    for t in range(1, steps + 1):
        if fit_from and t > fit_from:
            y = [y1] * clients if t == fit_from + 1 else y
            y = [y[m] - fit_lr * omega(m, x[m], y[m], t) for m in range(clients)]
            y = mean(y) if t % local_steps == 0 else y
            yield {"x": np.stack(x), "y": np.stack(y)}
            continue
        w = [omega(m, x[m], y[m], t) for m in range(clients)]
        nu = [phi(m, x[m], y[m], t) for m in range(clients)]
        y = [y[m] - gamma * w[m] for m in range(clients)]
        x_hat = [x[m] - eta * nu[m] for m in range(clients)]
        x = mean(x_hat) if t % local_steps == 0 else x_hat
        yield {"x": np.stack(x), "y": np.stack(y)}


def fedbioacc(
    omega: InnerGrad,
    phi: InnerGrad,
    x1: np.ndarray,
    y1: np.ndarray,
    clients: int,
    steps: int,
    eta: float,
    gamma: float,
    local_steps: int,
    delta: float,
    u: float,
    sigma: float,
    c_nu: float,
    c_omega: float,
    average_old_point: bool,
) -> Iterator[Fields]:
    M = range(clients)
    x, y = [x1] * clients, [y1] * clients
    x_old, y_old = x, y
    alpha = {t: delta / (u + sigma**2 * t) ** (1 / 3) for t in range(1, steps + 1)}
    for t in range(1, steps + 1):
        if t == 1:
            w = [omega(m, x[m], y[m], t) for m in M]
            nu = [phi(m, x[m], y[m], t) for m in M]
        else:
            a = alpha[t - 1] ** 2
            w = [
                omega(m, x[m], y[m], t)
                + (1 - c_omega * a) * (w[m] - omega(m, x_old[m], y_old[m], t))
                for m in M
            ]
            nu = [
                phi(m, x[m], y[m], t) + (1 - c_nu * a) * (nu[m] - phi(m, x_old[m], y_old[m], t))
                for m in M
            ]
        x_old, y_old = x, y
        y = [y[m] - gamma * alpha[t] * w[m] for m in M]
        x = [x[m] - eta * alpha[t] * nu[m] for m in M]
        if t % local_steps == 0:
            if average_old_point:
                x_old = mean(x_old)
            nu, x = mean(nu), mean(x)
        fields = {"x": x, "y": y, "x_old": x_old, "y_old": y_old, "nu": nu, "omega": w}
        yield {name: np.stack(rows) for name, rows in fields.items()}
