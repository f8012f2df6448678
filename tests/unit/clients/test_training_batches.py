"""Augmented and class-balanced batches: by (seed, client, step, k), so that placement is free."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cases import Clouds
from support.processes import Ranks
from torch import Tensor

import fedsys
from fedsys.algorithms import FedAvg, LocalSGDA, Scaffold
from fedsys.cli.main import main
from fedsys.clients.batches import Batch
from fedsys.clients.training_batches import TrainingBatches
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import Digits, Disjoint, Imbalance
from fedsys.data.dataset import Dataset, Scaling
from fedsys.models import MLP
from fedsys.problems import BinaryClassification, Classification, DeepAUC
from fedsys.system.compat import torchvision

torchvision()  # before a rank reads the transforms of a job
v2: Any = import_module("torchvision.transforms.v2")

SMALL = Digits(limit=240, limit_test=60)
AUGMENT = [v2.RandomHorizontalFlip(), v2.GaussianNoise(sigma=0.1)]
AUGMENTED = Classification(SMALL, model=MLP([8]), batch_size=4, augment=AUGMENT)
BALANCED = DeepAUC(
    SMALL, model=MLP([8]), batch_size=8, positive_share=0.5, imbalance=Imbalance(positive_ratio=0.1)
)


def site(clients: int = 4, **given: Any) -> Site:
    return Site(Placement(clients), seed=3, dtype=torch.float64, **given)


def stacked(batch: Batch) -> tuple[Tensor, Tensor]:
    assert isinstance(batch.inputs, Tensor)
    assert isinstance(batch.labels, Tensor)
    return batch.inputs, batch.labels


# Augmentation.


def test_a_batch_is_augmented_by_seed_client_step_and_k() -> None:
    plain = replace(AUGMENTED, augment=None).oracle(site()).data.batches
    batches = AUGMENTED.oracle(site()).data.batches
    inputs, labels = stacked(batches.at(2, 1))
    raw, raw_labels = stacked(plain.at(2, 1))
    assert torch.equal(labels, raw_labels)
    assert not torch.equal(inputs, raw)
    again = AUGMENTED.oracle(site()).data.batches
    again.at(0, 0)  # what was drawn before makes no difference
    assert torch.equal(stacked(again.at(2, 1))[0], inputs)
    noise = inputs - raw
    assert len({float(part.norm()) for part in noise.flatten(0, 1)}) == 16  # every sample its own
    assert not torch.equal(stacked(batches.at(2, 0))[0], inputs)


def test_each_sample_of_a_batch_is_transformed_by_itself() -> None:
    problem = replace(AUGMENTED, augment=v2.RandomHorizontalFlip(), batch_size=60)
    raw = stacked(replace(problem, augment=None).oracle(site()).data.batches.at(0, 0))[0]
    inputs = stacked(problem.oracle(site()).data.batches.at(0, 0))[0]
    flipped = [
        torch.equal(one, before.flip(-1))
        for one, before in zip(inputs.flatten(0, 1), raw.flatten(0, 1), strict=True)
    ]
    assert 60 < sum(flipped) < 180  # of 240, each with probability 1/2


def test_the_global_generators_are_left_as_they_were() -> None:
    batches = AUGMENTED.oracle(site()).data.batches
    before = torch.get_rng_state()
    batches.at(0, 0)
    assert torch.equal(torch.get_rng_state(), before)


class Bytes:
    """Eight images of 2x2 pixels in bytes; a pixel of 255 becomes 1."""

    def load(self) -> Dataset:
        images = torch.full((8, 1, 2, 2), 255, dtype=torch.uint8)
        labels = torch.arange(8) % 2
        return Dataset(images, labels, images, labels, 2, Scaling())


class Darken:
    """Sees what it is given."""

    def __call__(self, image: Tensor) -> Tensor:
        assert image.dtype == torch.uint8
        return image // 5


def test_images_in_bytes_are_augmented_before_they_are_scaled_and_not_for_evaluation() -> None:
    problem = Classification(Bytes(), model=MLP([]), batch_size=2, augment=Darken())
    data = problem.oracle(site(1)).data
    assert stacked(data.batches.at(0, 0))[0].unique().tolist() == pytest.approx([0.2])
    whole = torch.cat([inputs for inputs, _ in data.batches.pieces(0)])
    assert whole.unique().tolist() == [1.0]
    assert torch.cat([*data.test_pieces(torch.arange(8))]).unique().tolist() == [1.0]


def test_all_samples_of_unequal_clients_are_augmented_if_there_is_no_batch_size() -> None:
    problem = replace(AUGMENTED, batch_size=None)
    batch = problem.oracle(site(7)).data.batches.at(0, 0)
    assert [len(part) for part in batch.inputs] == [35, 35, 34, 34, 34, 34, 34]
    raw = replace(problem, augment=None).oracle(site(7)).data.batches.at(0, 0)
    assert not torch.equal(batch.inputs[6], raw.inputs[6])
    assert torch.equal(batch.labels[6], raw.labels[6])


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("flip", "augment must be a transform .* got 'flip'"),
        ([v2.Identity(), 3], "augment must be a transform .* got 3"),
        (v2.Resize((4, 4)), r"augment fails on a sample, \(64,\) float64: not enough values"),
        (lambda vector: vector[:9], r"augment must keep .* \(64,\) float64; got \(9,\) float64"),
        (lambda image: None, "augment must keep shape and type of a sample.*; got a NoneType"),
    ],
)
def test_what_is_no_augmentation_is_refused(given: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        replace(AUGMENTED, augment=given).oracle(site())


@pytest.mark.parametrize("problem", [AUGMENTED, replace(BALANCED)], ids=["augmented", "balanced"])
def test_exact_gradients_on_all_data_are_refused(problem: Any) -> None:
    line = re.escape("the exact gradient on all data, which this algorithm needs, is not known")
    with pytest.raises(InputError, match=line):
        problem.oracle(site()).full_operator(problem.oracle(site()).z0)


def train(problem: Any, algorithm: Any) -> dict[str, Tensor]:
    variables: dict[str, Tensor] = fedsys.run(
        problem, algorithm, rounds=3, clients=4, seed=5, dtype="float64"
    ).variables
    return variables


@pytest.mark.parametrize(
    ("problem", "algorithm"),
    [
        (AUGMENTED, FedAvg(lr=0.1, local_steps=3)),
        (BALANCED, LocalSGDA(lr_x=0.1, lr_y=0.1, local_steps=3)),
    ],
    ids=["augmented", "balanced"],
)
def test_the_trajectory_does_not_depend_on_the_placement(
    ranks: Ranks, problem: Any, algorithm: Any
) -> None:
    alone = train(problem, algorithm)
    for count in (2, 4):
        for found in ranks(count, train, problem, algorithm):
            for name, value in alone.items():
                torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)


# Balanced batches.


@pytest.mark.parametrize(("share", "positives"), [(0.5, 4), (0.25, 2), (0.3, 2), (0.8, 6)])
def test_every_batch_has_the_stated_share_of_positives(share: float, positives: int) -> None:
    batches = replace(BALANCED, positive_share=share).oracle(site()).data.batches
    for step in range(5):
        labels = stacked(batches.at(step, step % 2))[1]
        assert labels.sum(1).tolist() == [positives] * 4


def test_each_class_has_epochs_of_its_own() -> None:
    batches = BALANCED.oracle(site(1)).data.batches
    assert isinstance(batches, TrainingBatches)
    labels = torch.cat([labels for _, labels in batches.pieces(0)])
    positives = labels.nonzero()[:, 0]
    drawn = torch.cat([batches.indices(step, 0, 8) for step in range(len(positives))])
    counts = drawn.bincount(minlength=len(labels))
    # Four positives in each of n batches, n the number of positives: four epochs of them.
    assert counts[positives].tolist() == [4] * len(positives)
    negatives = counts[(labels == 0).nonzero()[:, 0]]
    assert int(negatives.max() - negatives.min()) <= 1


def test_a_client_without_a_class_is_named() -> None:
    problem = replace(BALANCED, partition=Disjoint(), imbalance=Imbalance())
    with pytest.raises(InputError, match="positive_share: client 5 has no negative training"):
        problem.oracle(site(10))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"positive_share": 0.0}, "positive_share must be between 0 and 1"),
        ({"positive_share": 1.0}, "positive_share must be between 0 and 1"),
        ({"positive_share": 0.05}, "positive_share=0.05 leaves a class without samples in a batch"),
        ({"batch_size": None}, "positive_share=0.5 needs a batch_size, got null"),
    ],
)
def test_shares_without_a_class_in_a_batch_are_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        replace(BALANCED, **given)


def test_the_loss_of_balanced_batches_weights_the_classes_by_their_shares() -> None:
    problem = BinaryClassification(SMALL, model=MLP([]), batch_size=4, positive_share=0.25)
    oracle = problem.oracle(site(1))
    z = torch.randn(oracle.z0.shape, dtype=torch.float64)
    loss = oracle._losses[0]
    oracle._load(0, (z,))
    pieces = [*oracle.data.batches.pieces(0)]
    inputs, labels = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    with torch.no_grad():
        by_class = [
            float(loss(oracle.min_player, inputs[labels == label], labels[labels == label]))
            for label in (0, 1)
        ]
    expected = 0.75 * by_class[0] + 0.25 * by_class[1]
    assert float(oracle._train_losses((z,))[0]) == pytest.approx(expected, rel=1e-12)


def test_the_auc_objective_has_the_ratio_of_the_batches() -> None:
    # Then the surrogate is that of the AUC, which does not depend on the ratio of the classes.
    oracle = BALANCED.oracle(site())
    losses: list[Any] = [*oracle._losses]
    assert {loss.p for loss in losses} == {0.5}
    assert oracle.z0.shape[0] == 4


def test_without_the_options_batches_are_the_plain_ones() -> None:
    plain = replace(AUGMENTED, augment=None).oracle(site()).data.batches
    assert type(plain).__name__ == "Batches"
    assert type(Classification(Clouds()).oracle(site()).data.batches).__name__ == "Batches"


def test_the_command_line_builds_a_list_of_transforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    noise = "{_target_: torchvision.transforms.v2.GaussianNoise, sigma: 0.2}"
    flip = "{_target_: torchvision.transforms.v2.RandomHorizontalFlip}"
    given = ("problem=classification", "algorithm=fedavg", "dataset.limit=100", "rounds=1")
    losses = []
    for number, augment in enumerate(("null", f"[{noise},{flip}]")):
        name = f"run.name={number}"
        monkeypatch.setattr(sys, "argv", ["fedsys", *given, name, f"problem.augment={augment}"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        summary = json.loads((tmp_path / f"runs/{number}/summary.json").read_text())
        losses.append(summary["final"]["train_loss"])
    assert losses[0] != losses[1]


def test_scaffold_with_control_variates_at_draws_accepts_augmented_batches() -> None:
    fedsys.run(AUGMENTED, Scaffold(lr=0.1, local_steps=2, option=2), rounds=1, clients=2)
