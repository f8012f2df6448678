"""The step size of Local SEG.

Aleksandr Beznosikov, Valentin Samokhin, Alexander Gasnikov. Distributed Saddle-Point Problems:
Lower Bounds, Near-Optimal and Robust Algorithms. 2020.
"""

from __future__ import annotations


def step(L: float, K: int) -> float:
    """Return 1 / (21 K L)."""
    return 1 / (21 * K * L)
