"""FedReg, FedMinMax and FCFL, with uniform client weights.

FedReg is a baseline of Li et al. (2022), arXiv:2205.01608, Section 6. FedMinMax is by Papadaki et
al. (FAccT 2022) and FCFL by Cui et al. (NeurIPS 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np

Fields = dict[str, np.ndarray]
Valued = Callable[[int, np.ndarray, int], tuple[float, np.ndarray]]
"""value and gradient of client i at x, with the batch of iteration t."""


def fedreg(
    loss: Valued,
    disparity: Valued,
    x0: np.ndarray,
    clients: int,
    steps: int,
    lr: float,
    weight: float,
    local_steps: int,
) -> Iterator[Fields]:
    x = [x0] * clients
    for t in range(steps):
        for i in range(clients):
            x[i] = x[i] - lr * (loss(i, x[i], t)[1] + weight * disparity(i, x[i], t)[1])
        if (t + 1) % local_steps == 0:
            x = [sum(x) / clients] * clients
        yield {"x": np.stack(x)}


def project(v: np.ndarray) -> np.ndarray:
    """The Euclidean projection onto the simplex, by bisection."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - (low + high) / 2, 0)


def fedminmax(
    group_risk: Callable[[int, int, np.ndarray, int], tuple[float, np.ndarray]],
    counts: np.ndarray,
    x0: np.ndarray,
    steps: int,
    lr: float,
    weight_lr: float,
) -> Iterator[Fields]:
    """Clients have equal sizes; counts[i, a] of group a, and their risks on iteration t's batch."""
    clients, groups = counts.shape
    n_a, n_i, n = counts.sum(0), counts.sum(1), counts.sum()
    rho = n_a / n
    x, mu, total = x0, rho, np.zeros_like(x0)
    for t in range(steps):
        w = mu / rho
        x_i, r = [], np.zeros((clients, groups))
        for i in range(clients):
            gradient = np.zeros_like(x)
            for a in range(groups):
                r[i, a], grad_a = group_risk(i, a, x, t)
                gradient = gradient + counts[i, a] / n_i[i] * w[a] * grad_a
            x_i.append(x - lr * gradient)
        x = sum(n_i[i] / n * x_i[i] for i in range(clients))
        mu = project(mu + weight_lr * (counts / n_a * r).sum(0))
        total = total + x
        rows = {"x": x, "mu": mu, "rho": rho, "x_o": total / (t + 1)}
        yield {name: np.tile(row, (clients, 1)) for name, row in rows.items()}


def best_mixture(gains: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """Maximise gains'a over the simplex with rows a >= 0, by looking at every vertex."""
    size = len(gains)
    planes = np.concatenate([np.eye(size), rows])
    chosen = np.array(list(combinations(range(len(planes)), size - 1)))
    systems = np.concatenate([planes[chosen], np.ones((len(chosen), 1, size))], axis=1)
    regular = np.linalg.cond(systems) < 1e12
    right = np.zeros((regular.sum(), size, 1))
    right[:, -1] = 1
    vertices = np.linalg.solve(systems[regular], right)[:, :, 0]
    scale = np.abs(rows).max()
    feasible = (vertices > -1e-12).all(1) & (vertices @ rows.T > -1e-12 * scale).all(1)
    if not feasible.any():
        return None
    vertices = vertices[feasible]
    return vertices[np.argmax(vertices @ gains)]


def softmax(v: np.ndarray) -> np.ndarray:
    weights = np.exp(v - v.max())
    return weights / weights.sum()


def fcfl(
    loss: Valued,
    disparity: Valued,
    x0: np.ndarray,
    clients: int,
    steps: int,
    lr: float,
    budget: float,
    first_stage: int,
    temperature: float,
) -> Iterator[Fields]:
    x, delta = x0, np.array([temperature, temperature])
    for t in range(steps):
        f, dl = zip(*(loss(i, x, t) for i in range(clients)), strict=True)
        g, dg = zip(*(disparity(i, x, t) for i in range(clients)), strict=True)
        f, dl, g, dg = map(np.array, (f, dl, g, dg))
        G_l, G_g = softmax(f / delta[0]) @ dl, softmax(g / delta[1]) @ dg
        if t < first_stage:
            D = np.stack([G_l, G_g])
            if g.max() <= budget:
                a = np.eye(2)[np.argmax(D @ G_l)]
            else:
                a = best_mixture(D @ G_g, (D @ G_l)[None])
                a = np.array([0.0, 1.0]) if a is None else a
            for k, G in enumerate((G_l, G_g)):
                if delta[k] > 1e-4 and 0.1 * np.linalg.norm(G) <= delta[k]:
                    delta = np.where(np.arange(2) == k, 0.01 * delta, delta)
        else:
            D = np.concatenate([dl, [G_g * (g.max() >= budget)]])
            a = best_mixture(D @ dl.mean(0), D @ D.T)
            a = np.array([1 / clients] * clients + [0.0]) if a is None else a
        x = x - lr * a @ D
        yield {"x": np.tile(x, (clients, 1)), "delta": np.tile(delta, (clients, 1))}
