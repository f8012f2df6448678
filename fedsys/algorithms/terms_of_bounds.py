"""Two small words in which step sizes and bounds are written."""

from __future__ import annotations

from math import inf


def rate(*pairs: float) -> float:
    """rate(a, p, b, q, ...) = a^p b^q ..."""
    product = 1.0
    for base, power in zip(pairs[::2], pairs[1::2], strict=True):
        product *= base**power
    return product


def over(numerator: float, denominator: float) -> float:
    """numerator / denominator; a term that vanishes with sigma or xi limits nothing."""
    return numerator / denominator if denominator > 0 else inf
