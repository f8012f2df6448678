"""Measures of group fairness of a binary classifier, and a differentiable surrogate.

Axes: C hosted clients, B samples, K groups.
"""

from __future__ import annotations

from itertools import permutations
from math import sqrt
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

SHARPNESS = 10.0
"""sigmoid(10 score) makes the rate of positives differentiable, as in the code of FCFL.

Cui et al. (NeurIPS 2021), arXiv:2108.08435.
"""


def confusion(scores: Tensor, labels: Tensor, groups: Tensor, K: int, valid: Tensor) -> Tensor:
    """Count the valid samples by group, label and prediction [C, K, 2, 2], from scores [C, B]."""
    cells = (2 * groups + labels) * 2 + (scores > 0)
    counts = torch.zeros(len(scores), 4 * K, dtype=torch.float64, device=scores.device)
    return counts.scatter_add(1, cells, valid.to(counts.dtype)).view(-1, K, 2, 2)


def unfairness(counts: Tensor) -> dict[str, float]:
    """Return the accuracy and the measures of unfairness of counts [K, 2, 2].

    eqopp is the largest difference between two groups' true-positive rates (TPR), which is in
    [eqopp_low, eqopp_high] with 95 % confidence. eqopp_std is the standard deviation of the groups'
    TPR, and eqopp_weighted_std the same with groups weighted by their positives. eqodds is the
    larger of eqopp and the largest difference of false-positive rates. parity is the largest
    difference between two groups' rates of positive predictions. A group without positives
    (negatives) has no true-positive (false-positive) rate and is left out.
    """
    accuracy = counts[:, [0, 1], [0, 1]].sum() / counts.sum()
    negatives, positives = (_spread(counts[:, label]) for label in (0, 1))
    low, high = largest_difference_interval(counts[:, 1])
    present = counts[counts[:, 1].sum(1) > 0, 1]
    sizes = present.sum(1)
    return {
        "accuracy": float(accuracy),
        "eqopp": positives,
        "eqopp_low": low,
        "eqopp_high": high,
        "eqopp_std": _deviation(present[:, 1] / sizes, torch.ones_like(sizes)),
        "eqopp_weighted_std": _deviation(present[:, 1] / sizes, sizes),
        "eqodds": max(positives, negatives),
        "parity": _spread(counts.sum(1)),
    }


def wilson(hits: float, size: float, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of the rate `hits` / `size`, for z standard deviations."""
    middle = (hits + z**2 / 2) / (size + z**2)
    half = z / (size + z**2) * sqrt(max(hits * (size - hits), 0.0) / size + z**2 / 4)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def largest_difference_interval(counts: Tensor, confidence: float = 0.95) -> tuple[float, float]:
    """Return a confidence interval of the largest difference of two groups' rates: counts [K, 2].

    The groups' intervals hold simultaneously with at least the given confidence (Bonferroni), and
    so does the interval of the largest difference. It is wide if a group is small.
    """
    present = counts[counts.sum(1) > 0].tolist()
    if len(present) < 2:
        return 0.0, 0.0
    z = NormalDist().inv_cdf(1 - (1 - confidence) / (2 * len(present)))
    ends = [wilson(hits, misses + hits, z) for misses, hits in present]
    low = max(max(low for low, _ in ends) - min(high for _, high in ends), 0.0)
    return low, max(a[1] - b[0] for a, b in permutations(ends, 2))


def _deviation(rates: Tensor, weights: Tensor) -> float:
    """Return the weighted standard deviation of rates [K]; 0 if there are none."""
    if not len(rates):
        return 0.0
    share = weights / weights.sum()
    return float((share * (rates - (share * rates).sum()).square()).sum().sqrt())


def _spread(counts: Tensor) -> float:
    """Return the largest difference of two groups' rates of predictions 1: counts [K, 2]."""
    present = counts[counts.sum(1) > 0]
    rates = present[:, 1] / present.sum(1)
    return float(rates.max() - rates.min()) if len(rates) else 0.0


def group_table(counts: Tensor, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return a row for each group of counts [K, 2, 2]; a rate over no samples is null.

    true_positive_interval is Wilson's 95 % interval of the true-positive rate.
    """

    def share(part: Tensor, whole: Tensor) -> float | None:
        return float(part / whole) if whole > 0 else None

    def interval(cell: Tensor) -> list[float] | None:
        return list(wilson(float(cell[1]), float(cell.sum()))) if cell.sum() > 0 else None

    return {
        name: {
            "rows": round(float(c.sum())),
            "positives": round(float(c[1].sum())),
            "accuracy": share(c[0, 0] + c[1, 1], c.sum()),
            "positive_rate": share(c[:, 1].sum(), c.sum()),
            "true_positive_rate": share(c[1, 1], c[1].sum()),
            "true_positive_interval": interval(c[1]),
            "false_positive_rate": share(c[0, 1], c[0].sum()),
        }
        for name, c in zip(names, counts, strict=True)
    }


def soft_disparity(
    scores: Tensor, labels: Tensor, groups: Tensor, K: int, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Return max over a, b of |r_a - r_b| [C] and its gradient [C, B].

    r_a is the soft true-positive rate of group a. Groups without a positive in the batch are left
    out; the value is 0 if fewer than two remain.
    """
    soft = (SHARPNESS * scores).sigmoid()
    positive = labels * valid.to(soft.dtype)
    count = soft.new_zeros(len(soft), K).scatter_add(1, groups, positive)
    rates = soft.new_zeros(len(soft), K).scatter_add(1, groups, positive * soft)
    rates = rates / count.clamp(min=1)
    present = count > 0
    high = torch.where(present, rates, -torch.inf).argmax(1, keepdim=True)
    low = torch.where(present, rates, torch.inf).argmin(1, keepdim=True)
    value = (rates.gather(1, high) - rates.gather(1, low))[:, 0]
    sign = torch.zeros_like(rates).scatter(1, high, 1.0)
    sign = sign.scatter_add(1, low, -torch.ones_like(rates[:, :1])) / count.clamp(min=1)
    slope = SHARPNESS * soft * (1 - soft) * positive * sign.gather(1, groups)
    return value, slope
