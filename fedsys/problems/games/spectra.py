"""Random matrices with a given spectrum and uniform directions. The first axis is the samples."""

from __future__ import annotations

import numpy as np


def symmetric(
    stream: np.random.Generator, samples: int, dim: int, low: float, high: float
) -> np.ndarray:
    """Return symmetric matrices [samples, dim, dim] with eigenvalues uniform in [low, high]."""
    eigenvalues = stream.uniform(low, high, (samples, 1, dim))
    Q = _orthogonal(stream, samples, dim)
    product: np.ndarray = (Q * eigenvalues) @ Q.swapaxes(1, 2)
    return product


def square(
    stream: np.random.Generator, samples: int, dim: int, low: float, high: float
) -> np.ndarray:
    """Return square matrices [samples, dim, dim] with singular values uniform in [low, high]."""
    values = stream.uniform(low, high, (samples, 1, dim))
    U, V = _orthogonal(stream, samples, dim), _orthogonal(stream, samples, dim)
    product: np.ndarray = (U * values) @ V
    return product


def _orthogonal(stream: np.random.Generator, samples: int, dim: int) -> np.ndarray:
    Q: np.ndarray = np.linalg.qr(stream.standard_normal((samples, dim, dim)))[0]
    return Q
