"""What the transcriptions of the min-max methods are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Gradients = Callable[[int, np.ndarray, np.ndarray, int, int], tuple[np.ndarray, np.ndarray]]
"""G(i, x, y, t, k): grad_x and grad_y of client i with the k-th sample of step t."""

FullGradients = Callable[[int, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""The same on all data of client i."""


def mean(vectors: Sequence[np.ndarray]) -> np.ndarray:
    return sum(vectors[1:], vectors[0]) / len(vectors)
