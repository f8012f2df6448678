"""Data sets, what is done to them, and who gets what: exact counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import Clouds

import fedsys
from fedsys.algorithms import FedAvg
from fedsys.clients import batches
from fedsys.clients.client_data import ClientData
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import (
    IID,
    ClientSplit,
    Dataset,
    Digits,
    Dirichlet,
    Disjoint,
    Group,
    Imbalance,
    Partition,
    PowerLaw,
    Scaling,
)
from fedsys.data.partition import refuse_empty_clients, split_clients
from fedsys.problems import BinaryClassification, Classification, CompositionalAUC, DeepAUC

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


def test_by_default_nothing_is_left_out_and_nothing_is_said() -> None:
    task = Imbalance()(CLOUDS, seed=0)
    assert torch.equal(task.train_inputs, CLOUDS.train_inputs)
    assert torch.equal(task.test_inputs, CLOUDS.test_inputs)
    assert task.note == ""
    for problem in (DeepAUC, CompositionalAUC, BinaryClassification):
        oracle = problem(Clouds()).oracle(Site(Placement(4)))
        assert sum(oracle.sizes) == 240


def test_omitted_samples_are_reported_with_counts() -> None:
    line = "imbalance: trains on 13 of 120 positive and 120 of 120 negative samples (positive_ratio"
    assert Imbalance(0.1)(CLOUDS, seed=0).note == f"{line}=0.1)"
    said = Imbalance(None, [3], [0, 1])(replace(CLOUDS, note="clouds: a part"), seed=0).note
    assert said.splitlines() == [
        "clouds: a part",
        "imbalance: trains on 60 of 60 positive and 120 of 180 negative samples "
        "(positive_ratio=null), tests on 45 of 60",
    ]


@dataclass(frozen=True)
class Halves:
    """The first rows of the data set to one client, the last to the other."""

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        assert len(labels) == 240
        return [np.arange(120), np.arange(120, 240)]


def test_a_partition_by_index_means_rows_of_the_data_set_also_where_some_are_left_out() -> None:
    twice = Imbalance(0.1, [1])(Imbalance(None, [2, 3])(CLOUDS, 0), seed=0)
    for task in (Imbalance(0.1)(CLOUDS, seed=0), twice):
        client_split = split_clients(task, Halves(), 2, seed=0)
        first = rows(CLOUDS.train_inputs[:120])
        assert sum(map(len, client_split.parts)) == len(task.train_labels) == 133
        assert rows(task.train_inputs[torch.from_numpy(client_split.parts[0])]) <= first
        assert not rows(task.train_inputs[torch.from_numpy(client_split.parts[1])]) & first
        assert client_split.rows is not None
        assert torch.equal(
            CLOUDS.train_inputs[torch.from_numpy(client_split.rows)], task.train_inputs
        )


def test_a_partition_that_names_a_row_that_is_not_there_is_refused() -> None:
    shorter = CLOUDS.take(torch.arange(100), torch.arange(60))

    class Wrong:
        def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
            return [np.arange(50), np.array([60, 100])]

    message = "partition: client 1 has row 100, the training part has rows 0 to 99"
    with pytest.raises(InputError, match=message):
        split_clients(shorter, Wrong(), 2, seed=0)


def test_which_positives_stay_is_a_matter_of_the_seed() -> None:
    first, again, other = (Imbalance(0.1)(CLOUDS, seed) for seed in (0, 0, 1))
    assert torch.equal(first.train_inputs, again.train_inputs)
    assert rows(first.train_inputs) != rows(other.train_inputs)


def test_a_ratio_that_needs_more_positives_than_exist_is_refused_with_the_counts() -> None:
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
    message = "positive must be first_half, second_half or a list of classes, got 'odd'"
    with pytest.raises(InputError, match=message):
        Imbalance(0.1, positive="odd")


def test_positive_and_negative_classes_can_be_named_and_others_are_left_out() -> None:
    task = Imbalance(None, positive=[3], negative=[0, 1])(CLOUDS, seed=0)
    assert task.train_labels.bincount().tolist() == [120, 60]
    assert task.original_classes.bincount().tolist() == [60, 60, 0, 60]
    assert task.test_labels.bincount().tolist() == [30, 15]
    assert torch.equal(task.original_classes == 3, task.train_labels == 1)


def test_classes_that_are_not_there_or_on_both_sides_are_refused() -> None:
    with pytest.raises(InputError, match=r"positive must be some of the classes 0 to 3, got \[4\]"):
        Imbalance(None, positive=[4])(CLOUDS, seed=0)
    with pytest.raises(
        InputError, match=r"negative must be apart from positive=\[1\], got \[0, 1\]"
    ):
        Imbalance(None, positive=[1], negative=[0, 1])(CLOUDS, seed=0)


# Images in bytes.


def test_bytes_stay_bytes_until_they_are_in_a_batch_which_is_scaled_by_channel() -> None:
    pixels = torch.arange(12 * 2 * 2 * 2, dtype=torch.uint8).view(12, 2, 2, 2)
    labels = torch.arange(12) % 2
    scaling = Scaling(mean=(0.5, 0.25), std=(0.5, 2.0))
    data = Dataset(pixels, labels, pixels[:3], labels[:3], classes=2, scaling=scaling)
    clients = ClientData.of(data, IID(), 4, Site(Placement(2), dtype=torch.float64))
    batch = clients.batches.at(0, 0)
    assert clients.test_inputs.dtype == torch.uint8
    expected = pixels.double() / 255
    expected[:, 0] = (expected[:, 0] - 0.5) / 0.5
    expected[:, 1] = (expected[:, 1] - 0.25) / 2.0
    by_first = {round(float(image[0, 0, 0]), 9): image for image in expected}
    for found in (*batch.inputs, *clients.batches.whole.inputs, *clients.test_pieces(labels[:3])):
        assert found.dtype == torch.float64
        for image in found:
            torch.testing.assert_close(image, by_first[round(float(image[0, 0, 0]), 9)])


def test_evaluation_in_pieces_equals_evaluation_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def metrics() -> dict[str, float]:
        problem = Classification(Clouds())
        result = fedsys.run(problem, FedAvg(lr=0.1), rounds=1, clients=2, dtype="float64")
        return {name: result.records[-1][name] for name in ("train_loss", "test_accuracy")}

    whole = metrics()
    monkeypatch.setattr(batches, "_PIECE_ON_CPU", 5 * 7)  # 7 of 120 samples at a time
    assert metrics() == pytest.approx(whole, rel=1e-12)


# Partition.

PARTITIONS = [IID(), Dirichlet(0.1), Dirichlet(100.0), PowerLaw(2.0), Disjoint()]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(PARTITIONS),
    st.lists(st.integers(0, 6), min_size=1, max_size=120),
    st.integers(1, 12),
    st.integers(0, 1000),
)
def test_every_partition_is_a_disjoint_cover_pure_and_without_empty_clients(
    partition: Partition, drawn: list[int], clients: int, seed: int
) -> None:
    labels = np.array(drawn)
    parts = partition.split(labels, clients, seed)
    assert len(parts) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    for part, again in zip(parts, partition.split(labels.copy(), clients, seed), strict=True):
        np.testing.assert_array_equal(part, again)
    enough = len(labels) if not isinstance(partition, Disjoint) else len(set(drawn))
    if clients <= enough:
        assert all(len(part) > 0 for part in parts)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), min_size=6, max_size=90),
    st.integers(0, 1000),
)
def test_groups_are_split_by_their_shares_in_any_order_of_clients(
    shares: list[float], drawn: list[int], seed: int
) -> None:
    labels, clients = np.array(drawn), len(shares)
    parts = Group(shares).split(labels, clients, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all(len(part) > 0 for part in parts)
    for group in set(drawn):
        sizes = sorted(int((labels[part] == group).sum()) for part in parts)
        ideal = sorted(share / sum(shares) * drawn.count(group) for share in shares)
        # A cut is off by less than one at each end; filling empty clients moves at most one each.
        np.testing.assert_allclose(sizes, ideal, atol=1 + clients)


def test_every_group_of_ten_is_two_two_and_six() -> None:
    labels = np.repeat(np.arange(5), 10)
    parts = Group([2, 2, 6]).split(labels, 3, seed=1)
    shares = np.stack([np.bincount(labels[part], minlength=5) for part in parts])
    assert [sorted(column) for column in shares.T.tolist()] == [[2, 2, 6]] * 5
    assert len({int(column.argmax()) for column in shares.T}) > 1, "each in an order of its own"


def test_shares_for_another_number_of_clients_are_refused() -> None:
    message = r"shares must be one number for each of the 4 clients, got \[2, 2, 6\]"
    with pytest.raises(InputError, match=message):
        Group().split(np.zeros(9), 4, seed=0)


def test_groups_go_by_the_data_sets_attribute_where_it_has_one() -> None:
    groups = torch.arange(240) // 120
    grouped = split_clients(replace(CLOUDS, train_groups=groups), Group([1, 3]), 2, seed=0)
    for part in grouped.parts:
        assert sorted(np.bincount(groups[part]).tolist()) in ([30, 30], [30, 90], [90, 90])
    by_class = split_clients(CLOUDS, Group([1, 3]), 2, seed=0)
    assert {int(n) for part in by_class.parts for n in np.bincount(CLOUDS.train_labels[part])} == {
        15, 45,
    }  # fmt: skip


@pytest.mark.parametrize("clients", [2, 5, 10, 25])
def test_no_class_is_on_two_clients_unless_there_are_more_clients_than_classes(
    clients: int,
) -> None:
    labels = np.arange(500) % 10
    held = [set(labels[part].tolist()) for part in Disjoint().split(labels, clients, seed=3)]
    assert set.union(*held) == set(range(10))
    if clients <= 10:
        assert sum(map(len, held)) == 10
    else:
        assert [len(classes) for classes in held] == [1] * clients
    if clients <= 5:
        assert all(min(classes) < 5 <= max(classes) for classes in held), "both sides of the task"


def test_a_binary_task_is_partitioned_by_its_original_classes() -> None:
    task = Imbalance(0.1)(Digits().load(), seed=0)
    client_split = split_clients(task, Disjoint(), 5, seed=0)
    names, counts = client_split.counts()
    assert names.tolist() == list(range(10))
    assert ((counts > 0).sum(0) == 1).all()
    for part in client_split.parts:
        assert set(task.train_labels[part].tolist()) == {0, 1}


def test_a_small_alpha_gives_a_client_fewer_classes_than_a_large_one() -> None:
    labels = np.arange(1000) % 10

    def largest_share(alpha: float) -> float:
        parts = Dirichlet(alpha).split(labels, 5, seed=0)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    assert largest_share(0.05) > 0.4 > 0.13 > largest_share(1000.0)


def test_sizes_by_a_power_law_are_those_of_a_hand() -> None:
    # 1 : 1/2 : 1/3 is 6 : 3 : 2.
    parts = PowerLaw(1.0).split(np.zeros(110), 3, seed=0)
    assert [len(part) for part in parts] == [60, 30, 20]


def test_owners_and_counts_describe_the_partition() -> None:
    client_split = ClientSplit([np.array([0, 3]), np.array([1])], np.array([7, 7, 8, 8]))
    assert client_split.owners().tolist() == [0, 1, -1, 0]
    names, counts = client_split.counts()
    assert names.tolist() == [7, 8]
    assert counts.tolist() == [[1, 1], [1, 0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dirichlet(0.0), "alpha must be positive, got 0.0"),
        (lambda: PowerLaw(-1.0), "exponent must be at least 0, got -1.0"),
        (lambda: Group([1, 0]), r"shares must be a list of positive numbers, got \[1, 0\]"),
    ],
)
def test_an_invalid_partition_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


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
    shape = (3, 8, 8)
    train, test = torch.zeros(240, *shape), torch.zeros(len(CLOUDS.test_labels), *shape)
    image = replace(CLOUDS, train_inputs=train, test_inputs=test)
    assert image.input_shape == (3, 8, 8)
