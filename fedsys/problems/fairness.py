"""How equally a binary classifier treats groups: rates, their differences, and a surrogate.

Axes: C hosted clients, B samples, K groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SHARPNESS = 10.0
"""The rate of positives is made differentiable by sigmoid(10 score), as in the code of FCFL."""


def confusion(scores: Tensor, labels: Tensor, groups: Tensor, K: int, valid: Tensor) -> Tensor:
    """Counts [C, K, 2, 2] by group, label and prediction, of scores [C, B] where valid."""
    cells = (2 * groups + labels) * 2 + (scores > 0)
    counts = torch.zeros(len(scores), 4 * K, dtype=torch.float64, device=scores.device)
    return counts.scatter_add(1, cells, valid.to(counts.dtype)).view(-1, K, 2, 2)


def unfairness(counts: Tensor) -> dict[str, float]:
    """accuracy, eqopp and eqodds of counts [K, 2, 2].

    eqopp is the largest difference of two groups' true-positive rates, eqodds the larger of that
    and the same of false-positive rates. A group without positives (negatives) has no such rate and
    is left out.
    """
    accuracy = counts[:, [0, 1], [0, 1]].sum() / counts.sum()
    negatives, positives = (_spread(counts[:, label]) for label in (0, 1))
    return {
        "accuracy": float(accuracy),
        "eqopp": positives,
        "eqodds": max(positives, negatives),
    }


def _spread(counts: Tensor) -> float:
    """The largest difference of the share of predictions 1 between two groups: counts [K, 2]."""
    present = counts[counts.sum(1) > 0]
    rates = present[:, 1] / present.sum(1)
    return float(rates.max() - rates.min()) if len(rates) else 0.0


def group_table(counts: Tensor, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """A row for each group of counts [K, 2, 2]; a rate of nobody is null."""

    def share(part: Tensor, whole: Tensor) -> float | None:
        return float(part / whole) if whole > 0 else None

    return {
        name: {
            "rows": int(c.sum()),
            "positives": int(c[1].sum()),
            "accuracy": share(c[0, 0] + c[1, 1], c.sum()),
            "true_positive_rate": share(c[1, 1], c[1].sum()),
            "false_positive_rate": share(c[0, 1], c[0].sum()),
        }
        for name, c in zip(names, counts, strict=True)
    }


def soft_disparity(
    scores: Tensor, labels: Tensor, groups: Tensor, K: int, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """max over a, b of |r_a - r_b| [C], r_a the soft true-positive rate; its gradient [C, B].

    Groups without a positive in the batch are left out; 0 if fewer than two remain.
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
