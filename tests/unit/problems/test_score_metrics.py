"""Metrics of scores: the AUC from counts is within its bound, and others have known values."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from fedsys.problems.networks.score_metrics import (
    BINS,
    Operating,
    auc_of_counts,
    auroc,
    average_precision,
    calibration_error,
    has_both_classes,
    measured,
    partial_auc,
    score_counts,
    sensitivity_at_specificity,
)

AT = Operating()
TIES = [0.0, 1e-3, 1.0001e-3, 2.0, -1.0, 40.0, 41.0, 800.0, -800.0]


@st.composite
def samples(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Logits and labels of up to 40 samples: many ties, neighbours, and the ends of the range."""
    stream = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.integers(2, 40))
    values = np.concatenate([TIES, stream.normal(0, 10.0 ** draw(st.integers(-4, 1)), 20)])
    logits = stream.choice(values[: draw(st.integers(1, len(values)))], size)
    labels = stream.permutation(np.arange(size) < draw(st.integers(1, size - 1)))
    return torch.from_numpy(logits), torch.from_numpy(labels.astype(np.int64))


def by_hand(logits: Tensor, labels: Tensor) -> float:
    positive, negative = logits[labels == 1][:, None], logits[labels == 0]
    return float(((positive > negative).double() + 0.5 * (positive == negative)).mean())


@settings(max_examples=1000, deadline=None)
@given(samples(), st.sampled_from([1, 2, 7, BINS]))
def test_the_auc_from_counts_differs_from_the_pooled_one_by_its_bound_at_most(
    case: tuple[Tensor, Tensor], bins: int
) -> None:
    logits, labels = case
    counts = score_counts(logits, labels, bins)
    assert counts.sum(1).tolist() == [int((labels == 0).sum()), int((labels == 1).sum())]
    auc, bound = auc_of_counts(counts)
    assert abs(auc - by_hand(logits, labels)) <= bound + 1e-12


def test_the_pooled_auc_is_that_of_scikit_learn_with_ties() -> None:
    stream = torch.Generator().manual_seed(0)
    logits = torch.randint(-9, 9, (200,), generator=stream).double()
    labels = torch.randint(0, 2, (200,), generator=stream)
    assert auroc(logits, labels) == pytest.approx(roc_auc_score(labels, logits), abs=1e-6)
    found = average_precision(logits, labels, AT)
    assert found == pytest.approx(average_precision_score(labels, logits), abs=1e-6)


def test_counts_give_the_auc_and_the_bound_that_are_computed_by_hand() -> None:
    # Of the 3 x 2 pairs 4 are in order, 1 is reversed, and 1 is in the same bin.
    counts = torch.tensor([[2, 1, 0], [0, 1, 1]])
    assert auc_of_counts(counts) == pytest.approx((5.5 / 6, 0.5 / 6))
    assert auc_of_counts(torch.tensor([[0, 1], [1, 0]])) == (0, 0)
    assert auc_of_counts(torch.tensor([[3], [5]])) == (0.5, 0.5)


def test_counts_of_several_clients_add_up_to_those_of_all() -> None:
    logits = torch.linspace(-4, 4, 30)
    labels = torch.arange(30) % 3 // 2
    parts = [score_counts(*part) for part in zip(logits.split(7), labels.split(7), strict=True)]
    assert sum(parts).equal(score_counts(logits, labels))  # type: ignore[union-attr]


def test_equal_logits_share_a_bin_at_every_place_of_a_vector() -> None:
    logits = torch.full((13,), 0.1234567)
    labels = torch.arange(13) % 2
    assert int((score_counts(logits, labels).sum(0) > 0).sum()) == 1


def test_without_one_of_the_classes_the_auc_is_undefined() -> None:
    labels = torch.ones(3, dtype=torch.int64)
    assert not has_both_classes(labels)
    assert not has_both_classes(0 * labels)
    assert has_both_classes(torch.tensor([0, 1]))
    assert all(map(isnan, auc_of_counts(score_counts(torch.zeros(3), labels))))


def test_further_metrics_have_the_values_that_are_computed_by_hand() -> None:
    logits = torch.tensor([-3.0, -2.0, -1.0, 0.5, 1.0, 2.0, 3.0, 4.0])
    labels = torch.tensor([0, 0, 0, 1, 0, 1, 1, 1])
    # Recall rises by 1/4 at precisions 1, 1, 1 and 4/5.
    assert average_precision(logits, labels, AT) == pytest.approx(0.95)
    # Three of four positives are above the highest negative.
    assert sensitivity_at_specificity(logits, labels, AT) == pytest.approx(0.75)
    assert sensitivity_at_specificity(logits, labels, Operating(specificity=0.75)) == 1
    # Up to a rate of 1/4 the curve is at 3/4: 3/16, and (1 + (3/16 - 1/32) / (1/4 - 1/32)) / 2.
    expected = (1 + (3 / 16 - 1 / 32) / (1 / 4 - 1 / 32)) / 2
    assert partial_auc(logits, labels, Operating(max_fpr=0.25)) == pytest.approx(expected)
    certain = torch.tensor([-50.0, 50.0])
    assert calibration_error(certain, torch.tensor([0, 1]), AT) == pytest.approx(0, abs=1e-12)
    assert calibration_error(certain, torch.tensor([1, 0]), AT) == pytest.approx(1)


def test_the_metrics_of_a_record_have_the_prefix_of_the_test_set() -> None:
    logits, labels = torch.tensor([0.0, 1.0]), torch.tensor([0, 1])
    found = measured(["partial_auc", "average_precision"], logits, labels, AT)
    assert found == {"test_auc": 1, "test_partial_auc": 1, "test_average_precision": 1}
