"""LocalSGDM with the ratio loss and its monitor (Wang et al. 2021), from the authors' code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


def ratios(changes: np.ndarray) -> np.ndarray:
    """`changes[q, i, j]` of the last layer by training on class q alone."""
    classes, rows, columns = changes.shape
    own, others = np.zeros(classes), np.zeros(classes)
    for i in range(rows):
        for j in range(columns):
            entry = changes[:, i, j]
            q = int(np.argmax(entry))
            if sum(abs(change) > 0.8 * abs(entry[q]) for change in entry) >= 2:
                continue
            own[q] += entry[q]
            others[q] += np.mean(np.delete(entry, q))
    return np.array([min(5000, abs(a) / abs(b)) if b else 10 for a, b in zip(own, others)])  # noqa: B905


def localsgdm_rl(
    gradient: Callable[[int, np.ndarray, np.ndarray, int], np.ndarray],
    class_gradient: Callable[[int, np.ndarray], np.ndarray],
    head: slice,
    x0: np.ndarray,
    clients: int,
    steps: int,
    lr: Callable[[int], float],
    momentum: float,
    local_steps: int,
    beta: float,
) -> Iterator[dict[str, np.ndarray]]:
    """`gradient(i, x, alpha, t)` of client i; `class_gradient(q, x)` of auxiliary samples."""

    def monitor(x: np.ndarray, t: int) -> np.ndarray:
        changes = []
        for q in (0, 1):
            w, v = x, np.zeros_like(x)
            for _ in range(local_steps):
                v = momentum * v + class_gradient(q, w)
                w = w - lr(t) * v
            changes.append([-(w - x)[head], (w - x)[head]])
        return 1 + beta * ratios(np.array(changes))

    x, u = [x0] * clients, [np.zeros_like(x0)] * clients
    alpha, ahead = np.ones(2), monitor(x0, 0)
    for t in range(steps):
        for i in range(clients):
            u[i] = momentum * u[i] + gradient(i, x[i], alpha, t)
            x[i] = x[i] - lr(t) * u[i]
        if (t + 1) % local_steps == 0:
            x, u = [sum(x) / clients] * clients, [sum(u) / clients] * clients
            alpha, ahead = ahead, monitor(x[0], t)
        yield {
            "x": np.stack(x),
            "u": np.stack(u),
            "alpha": np.stack([alpha] * clients),
            "next_alpha": np.stack([ahead] * clients),
        }
