"""The two expressions that the theorems' step sizes and bounds are made of."""

from __future__ import annotations

from math import inf


def monomial(*pairs: float) -> float:
    """Return a^p b^q ... for the arguments a, p, b, q, ..."""
    product = 1.0
    for base, power in zip(pairs[::2], pairs[1::2], strict=True):
        product *= base**power
    return product


def step_limit(numerator: float, denominator: float) -> float:
    """Return the upper limit numerator / denominator of a step size.

    It is infinite where the denominator vanishes with sigma or xi: such a term limits nothing.
    """
    return numerator / denominator if denominator > 0 else inf
