"""Data sets, what is done to them, and who gets what: exact counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import Clouds
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsys.communication import Placement
from fedsys.data import IID, Dataset, Digits, Imbalance
from fedsys.data.partition import refuse_empty_clients
from fedsys.errors import InputError
from fedsys.problems import Classification, Site
from fedsys.problems.network import ClientData

CLOUDS = Clouds().load()


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits().load()


def rows(inputs: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in inputs.tolist()}


# Digits.


def test_digits_are_those_of_scikit_learn(digits: Dataset) -> None:
    from sklearn.datasets import load_digits

    theirs = load_digits()
    assert len(theirs.target) == 1797
    inputs = torch.cat([digits.train_inputs, digits.test_inputs]).numpy() * 16
    labels = torch.cat([digits.train_labels, digits.test_labels]).numpy()
    mine = np.column_stack([inputs, labels])
    expected = np.column_stack([theirs.data, theirs.target])
    np.testing.assert_array_equal(
        mine[np.lexsort(mine.T)], expected[np.lexsort(expected.T)].astype(mine.dtype)
    )


def test_digits_have_the_counts_of_every_class_and_pixels_in_0_1(digits: Dataset) -> None:
    labels = torch.cat([digits.train_labels, digits.test_labels])
    counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert labels.bincount().tolist() == counts
    assert digits.classes == 10
    assert digits.input_shape == (64,)
    assert digits.train_inputs.min() == 0
    assert digits.train_inputs.max() == 1


def test_a_quarter_of_every_digit_is_kept_for_testing_and_always_the_same(digits: Dataset) -> None:
    train, test = digits.train_labels.bincount(), digits.test_labels.bincount()
    assert test.tolist() == [round(0.25 * int(n)) for n in train + test]
    again = Digits().load()
    assert torch.equal(again.test_inputs, digits.test_inputs)
    assert torch.equal(again.train_labels, digits.train_labels)


@pytest.mark.parametrize("share", [0, 1, -0.5])
def test_a_test_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(InputError, match=rf"test_share must be in \(0, 1\), got {share}"):
        Digits(test_share=share)


# Imbalance.


@pytest.mark.parametrize("ratio", [0.04, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("positive", ["first_half", "second_half"])
def test_all_negatives_and_exactly_p_over_1_minus_p_of_them_positives_are_kept(
    digits: Dataset, ratio: float, positive: str
) -> None:
    if ratio == 0.5 and positive == "second_half":
        ratio = 0.45  # the digits 5 to 9 are a little fewer than 0 to 4
    task = Imbalance(ratio, positive)(digits, seed=0)
    upper = digits.train_labels >= 5
    negatives = int((upper if positive == "first_half" else ~upper).sum())
    kept = task.train_labels.bincount().tolist()
    assert kept == [negatives, int(ratio / (1 - ratio) * negatives)]
    assert kept[1] / sum(kept) == pytest.approx(ratio, abs=1 / sum(kept))
    assert task.classes == 2


def test_digits_five_against_five_at_ten_percent() -> None:
    # 676 training samples show 0 to 4: (178 - 44) + (182 - 46) + (177 - 44) + (183 - 46) + (181 -
    # 45); 75 of the others stay, the whole part of 676 / 9.
    task = Imbalance(0.1)(Digits().load(), seed=0)
    assert task.train_labels.bincount().tolist() == [676, 75]


def test_the_samples_keep_their_labels_when_they_are_thinned() -> None:
    task = Imbalance(0.2)(CLOUDS, seed=1)
    classes = dict(zip(map(tuple, CLOUDS.train_inputs.tolist()), CLOUDS.train_labels, strict=True))
    for inputs, label in zip(task.train_inputs.tolist(), task.train_labels, strict=True):
        assert int(classes[tuple(inputs)] >= 2) == label
    assert len(rows(task.train_inputs)) == len(task.train_labels)


def test_the_test_part_is_untouched_and_as_balanced_as_it_was() -> None:
    task = Imbalance(0.1)(CLOUDS, seed=0)
    assert torch.equal(task.test_inputs, CLOUDS.test_inputs)
    assert torch.equal(task.test_labels, (CLOUDS.test_labels >= 2).long())
    assert task.test_labels.bincount().tolist() == [30, 30]


def test_no_ratio_keeps_everything() -> None:
    task = Imbalance(None)(CLOUDS, seed=0)
    assert torch.equal(task.train_inputs, CLOUDS.train_inputs)
    assert task.train_labels.bincount().tolist() == [120, 120]


def test_which_positives_stay_is_a_matter_of_the_seed() -> None:
    first, again, other = (Imbalance(0.1)(CLOUDS, seed) for seed in (0, 0, 1))
    assert torch.equal(first.train_inputs, again.train_inputs)
    assert rows(first.train_inputs) != rows(other.train_inputs)


def test_a_limit_keeps_so_many_of_both_parts_and_the_share_of_positives() -> None:
    task = Imbalance(0.2, limit=50)(CLOUDS, seed=1)
    assert task.train_labels.bincount().tolist() == [40, 10]
    assert task.test_labels.bincount().tolist() == [25, 25]
    assert len(task.train_inputs) == len(task.test_inputs) == 50
    whole = {tuple(row) for row in Imbalance(0.2)(CLOUDS, seed=1).train_inputs.tolist()}
    assert {tuple(row) for row in task.train_inputs.tolist()} < whole
    assert len(Imbalance(0.2, limit=10_000)(CLOUDS, seed=1).train_labels) == len(whole)
    with pytest.raises(InputError, match="limit must be at least 2 or null, got 1"):
        Imbalance(limit=1)


def test_more_positives_than_there_are_is_refused_with_the_counts() -> None:
    message = r"positive_ratio=0\.75 asks for 360 positives, the data has 120 \(and 120 negatives\)"
    with pytest.raises(InputError, match=message):
        Imbalance(0.75)(CLOUDS, seed=0)
    with pytest.raises(InputError, match="asks for 0 positives"):
        Imbalance(0.001)(CLOUDS, seed=0)


@pytest.mark.parametrize("ratio", [0, 1, -0.1, 1.5])
def test_a_ratio_outside_its_range_is_refused(ratio: float) -> None:
    with pytest.raises(InputError, match=f"positive_ratio must be .*, got {ratio}"):
        Imbalance(ratio)


def test_an_unknown_half_is_refused() -> None:
    with pytest.raises(InputError, match="positive must be first_half or second_half, got 'odd'"):
        Imbalance(0.1, positive="odd")


# Partition.


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 1000))
def test_iid_is_a_disjoint_cover_of_equal_parts_and_pure(
    samples: int, clients: int, seed: int
) -> None:
    labels = np.arange(samples) % 3
    parts = IID().split(labels, clients, seed)
    assert len(parts) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for part, again in zip(parts, IID().split(labels, clients, seed), strict=True):
        np.testing.assert_array_equal(part, again)


def test_another_seed_is_another_partition() -> None:
    one, other = (IID().split(np.zeros(50), 5, seed)[0].tolist() for seed in (0, 1))
    assert one != other


def test_an_empty_client_is_refused_in_one_clear_line() -> None:
    with pytest.raises(InputError) as refusal:
        refuse_empty_clients([np.arange(3), np.arange(0), np.arange(2)])
    assert str(refusal.value) == (
        "client 1 has no training sample (5 samples over 3 clients); "
        "use fewer clients or another partition"
    )


def test_a_problem_with_more_clients_than_samples_is_refused() -> None:
    with pytest.raises(InputError, match="client 240 has no training sample"):
        Classification(Clouds()).oracle(Site(Placement(300)))


def test_every_client_gets_its_own_part_wherever_it_lives() -> None:
    def parts(ranks: int) -> list[set[tuple[float, ...]]]:
        found = []
        for rank in range(ranks):
            site = Site(Placement(6, rank, ranks), seed=2, dtype=torch.float64)
            data = ClientData.of(CLOUDS, IID(), 4, site)
            found += [rows(inputs) for inputs in data.batches.whole.inputs]
            assert data.batches.sizes == [40] * len(site.hosted)
        return found

    alone = parts(1)
    assert set.union(*alone) == rows(CLOUDS.train_inputs)
    assert sum(map(len, alone)) == len(CLOUDS.train_inputs)
    for ranks in (2, 4, 6):
        assert parts(ranks) == alone


def test_the_input_shape_is_that_of_one_sample() -> None:
    image = replace(CLOUDS, train_inputs=torch.zeros(240, 3, 8, 8))
    assert image.input_shape == (3, 8, 8)
