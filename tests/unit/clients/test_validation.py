"""Samples that clients hold out: which they are, what is measured on them, and stopping by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.processes import Ranks
from torch import Tensor

import fedsys
from fedsys import EarlyStopping
from fedsys.algorithms import FedAvg, LocalSGDA
from fedsys.clients.validation import hold_out
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import Digits, Imbalance
from fedsys.models import MLP
from fedsys.problems import Classification, DeepAUC

SMALL = Digits(limit=240, limit_test=60)
PROBLEM = Classification(SMALL, model=MLP([4]), batch_size=4, validation_share=0.25)
AUC = DeepAUC(SMALL, model=MLP([4]), batch_size=4, validation_share=0.25)
TRAIN = LocalSGDA(lr_x=0.3, lr_y=0.3, local_steps=3)


def site(clients: int = 3) -> Site:
    return Site(Placement(clients), seed=3, dtype=torch.float64)


def rows(batches: Any, row: int) -> list[tuple[float, ...]]:
    """Return the samples of a client as tuples."""
    inputs = torch.cat([inputs for inputs, _ in batches.pieces(row)])
    return [tuple(one) for one in inputs.flatten(1).tolist()]


def test_every_sample_is_either_trained_on_or_held_out() -> None:
    data = PROBLEM.oracle(site()).data
    whole = replace(PROBLEM, validation_share=0.0).oracle(site()).data
    assert data.validation is not None
    for row in range(3):
        trained, held = rows(data.batches, row), rows(data.validation, row)
        assert sorted(trained + held) == sorted(rows(whole.batches, row))
        assert data.batches.sizes[row] == len(trained)
    assert int(data.totals.sum()) == sum(data.batches.sizes)
    assert whole.validation is None


def test_each_class_of_a_client_is_held_out_by_the_share() -> None:
    whole = replace(PROBLEM, validation_share=0.0).oracle(site()).data.batches
    train, held = hold_out(whole, 0.25, seed=3)
    for row in range(3):
        before = whole.labels[whole.own(row)].bincount(minlength=10)
        after = held.labels[held.own(row)].bincount(minlength=10)
        expected = [min(int(0.25 * n + 0.5), max(n - 1, 0)) for n in before.tolist()]
        assert after.tolist() == expected
        assert (train.labels[train.own(row)].bincount(minlength=10) + after).equal(before)


def test_what_is_held_out_depends_on_seed_and_client_alone() -> None:
    one, other = (PROBLEM.oracle(site()).data.validation for _ in range(2))
    assert one is not None
    assert other is not None
    assert rows(one, 2) == rows(other, 2)
    hosted = Site(Placement(3, 2, 3), seed=3, dtype=torch.float64)
    alone = PROBLEM.oracle(hosted).data.validation
    assert alone is not None
    assert rows(alone, 0) == rows(one, 2)
    changed = PROBLEM.oracle(replace(site(), seed=4)).data.validation
    assert changed is not None
    assert rows(changed, 2) != rows(one, 2)


def test_the_metrics_are_those_of_the_held_out_samples() -> None:
    result = fedsys.run(AUC, TRAIN, rounds=3, clients=3, seed=3, dtype="float64")
    oracle: Any = AUC.oracle(replace(site(), kind="minimax"))
    held, z = oracle.data.validation, _row(result.variables, oracle)
    assert held is not None
    oracle._load(0, z)
    losses, scores, labels = [], [], []
    with torch.no_grad():
        for row in range(3):
            parts = [*held.pieces(row)]
            inputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
            losses.append(float(oracle._losses[row](*oracle._modules(), inputs, targets)))
            scores.append(oracle.min_player.logits(inputs))
            labels.append(targets)
    assert result.records[-1]["validation_loss"] == pytest.approx(sum(losses) / 3, rel=1e-9)
    every, targets = torch.cat(scores), torch.cat(labels)
    pairs = every[targets == 1][:, None] - every[targets == 0]
    auc = float((pairs > 0).double().mean() + (pairs == 0).double().mean() / 2)
    # torchmetrics computes in float32.
    assert result.records[-1]["validation_auc"] == pytest.approx(auc, abs=1e-6)


def _row(variables: dict[str, Tensor], oracle: Any) -> tuple[Tensor, ...]:
    """Return the variables as the rows of each player."""
    found = []
    for player in oracle._players:
        for name, parameter in player.module.named_parameters():
            parameter.data.copy_(variables[name])
        parts = [parameter.detach().reshape(-1) for parameter in player.parameters]
        found.append(torch.cat(parts)[None])
    return tuple(found)


def test_a_task_of_several_classes_has_a_validation_loss_only() -> None:
    record = fedsys.run(PROBLEM, FedAvg(lr=0.1), rounds=1, clients=2).records[-1]
    assert "validation_loss" in record
    assert "validation_auc" not in record
    plain = replace(PROBLEM, validation_share=0.0)
    assert "validation_loss" not in fedsys.run(plain, FedAvg(lr=0.1), rounds=1).records[-1]


def stopped(metric: str) -> Any:
    options = EarlyStopping(metric=metric, patience=2, min_delta=0.02)
    given: dict[str, Any] = {"clients": 4, "rounds": 40, "dtype": "float64", "seed": 2}
    result = fedsys.run(AUC, TRAIN, early_stopping=options, keep="best", **given)
    return result.kept, result.stopped, result.variables


@pytest.mark.parametrize("metric", ["validation_auc", "validation_loss"])
def test_early_stopping_acts_on_held_out_samples_alike_on_every_placement(
    ranks: Ranks, metric: str
) -> None:
    kept, reason, variables = stopped(metric)
    assert reason.startswith(f"early stopping: {metric} has not improved by more than 0.02 for 2")
    for count in (2, 4):
        for found in ranks(count, stopped, metric):
            assert found[0] == pytest.approx(kept, abs=1e-12)
            assert found[1] == reason
            for name, value in variables.items():
                torch.testing.assert_close(found[2][name], value, rtol=0, atol=1e-12)


def test_validation_works_with_balanced_and_augmented_batches() -> None:
    problem = replace(AUC, positive_share=0.5, augment=torch.clone, imbalance=Imbalance(0.2))
    oracle: Any = problem.oracle(site())
    assert oracle.data.validation is not None
    assert oracle.data.batches.at(0, 0).labels.sum(1).tolist() == [2, 2, 2]
    assert int(oracle.data.totals.sum()) == sum(oracle.data.batches.sizes)


@pytest.mark.parametrize("share", [1.0, -0.1])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(InputError, match=r"validation_share must be 0 \(none\) or more, and below"):
        replace(PROBLEM, validation_share=share)


def test_a_share_that_holds_out_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"validation_share=0\.01 holds out none of the 80"):
        replace(PROBLEM, validation_share=0.01).oracle(site())
