"""The momentum weight of Momentum Local SGDA.

Pranay Sharma, Rohan Panda, Gauri Joshi, Pramod K. Varshney. Federated Minimax Optimization:
Improved Convergence Analyses and Algorithms. ICML 2022.
"""

from __future__ import annotations

from math import sqrt

from fedsys.core.constants import Theory


def alpha(theory: Theory, K: int, beta: float) -> float:
    """Return alpha = sqrt(n/T) for n clients and T steps, as far as beta alpha <= 1 allows."""
    rounds, clients = theory.size(K)
    decaying = sqrt(clients / (rounds * K))
    return min(decaying, 1.0, 1 / beta)
