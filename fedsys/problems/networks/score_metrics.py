"""Metrics of scores: the AUC from all scores or from counts in bins, and others from all scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsys.system.compat import torchmetrics

BINS = 2**12
"""The bins of equal width into which the scores in [0, 1] are counted."""


def auroc(logits: Tensor, labels: Tensor) -> float:
    """Return the fraction of pairs of a positive and a negative in order; a tie counts half."""
    return float(torchmetrics().binary_auroc(_ranks(logits), labels))


def has_both_classes(labels: Tensor) -> bool:
    """Return whether there is a positive and a negative, without which no AUC is defined."""
    return 0 < int(labels.sum()) < len(labels)


def score_counts(logits: Tensor, labels: Tensor, bins: int = BINS) -> Tensor:
    """Return the numbers of negatives and positives in each bin of the scores [2, bins].

    The score is the sigmoid of the logit. The logits are compared with those of the edges of the
    bins: unlike computed sigmoids, they keep their order and their ties.
    """
    edges = torch.arange(1, bins, dtype=torch.float64, device=logits.device).div(bins).logit()
    places = torch.bucketize(logits.double(), edges, right=True) + bins * labels.long()
    return places.bincount(minlength=2 * bins).view(2, bins)


def auc_of_counts(counts: Tensor) -> tuple[float, float]:
    """Return the AUC from the counts of negatives and positives by bin [2, bins], and its error.

        AUC = sum over bins b of p_b (n_1 + ... + n_{b-1} + n_b / 2) / (P N)
        |error| <= sum over bins b of p_b n_b / (2 P N)

    A pair of a positive and a negative in different bins is counted exactly, one in the same bin as
    one half, whether its scores are equal or not. Without one of the classes, both are NaN.
    """
    negatives, positives = counts.long()
    pairs = int(negatives.sum()) * int(positives.sum())
    if pairs == 0:
        return float("nan"), float("nan")
    below = negatives.cumsum(0) - negatives
    in_order, shared = int((positives * below).sum()), int((positives * negatives).sum())
    return (2 * in_order + shared) / (2 * pairs), shared / (2 * pairs)


@dataclass(frozen=True)
class Operating:
    """The operating points of the metrics that need one.

    Args:
        specificity: the smallest specificity at which the sensitivity is measured.
        max_fpr: the largest false-positive rate of the partial AUC.
    """

    specificity: float = 0.9
    max_fpr: float = 0.1


def average_precision(logits: Tensor, labels: Tensor, at: Operating) -> float:
    """Return the area under the precision-recall curve, as a sum over its steps."""
    return float(torchmetrics().binary_average_precision(_ranks(logits), labels))


def sensitivity_at_specificity(logits: Tensor, labels: Tensor, at: Operating) -> float:
    """Return the largest sensitivity of a threshold with at least this specificity."""
    measure = torchmetrics().binary_sensitivity_at_specificity
    return float(measure(_ranks(logits), labels, at.specificity)[0])


def calibration_error(logits: Tensor, labels: Tensor, at: Operating) -> float:
    """Return the mean distance of score and fraction of positives in 15 bins of the scores."""
    return float(torchmetrics().binary_calibration_error(logits.double().sigmoid(), labels))


def partial_auc(logits: Tensor, labels: Tensor, at: Operating) -> float:
    """Return the AUC up to a false-positive rate, scaled so that 0.5 is chance and 1 is perfect."""
    return float(torchmetrics().binary_auroc(_ranks(logits), labels, max_fpr=at.max_fpr))


MEASURES: dict[str, Callable[[Tensor, Tensor, Operating], float]] = {
    measure.__name__: measure
    for measure in (average_precision, sensitivity_at_specificity, calibration_error, partial_auc)
}
"""The metrics that a problem can be asked for besides the AUC."""


def measured(
    names: Sequence[str], logits: Tensor, labels: Tensor, at: Operating
) -> dict[str, float]:
    """Return the AUC and further metrics of the test set, by their names in a record."""
    found = {"test_auc": auroc(logits, labels)}
    return found | {f"test_{name}": MEASURES[name](logits, labels, at) for name in names}


def _ranks(logits: Tensor) -> Tensor:
    """Return numbers in [0, 1) with the order and the ties of the logits.

    A sigmoid would map all large logits to 1, and break ties, because its last bit depends on the
    position in a vector.
    """
    order = logits.unique(return_inverse=True)[1]
    ranks: Tensor = order.double() / len(order)
    return ranks
