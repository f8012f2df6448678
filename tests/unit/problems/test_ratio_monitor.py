"""The monitor of the ratio loss: class weights that the server estimates in every round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cases import MONITORED, Case, Clouds, Drive
from support.ratio_network import ALGORITHM, LOGISTIC, STEPS, transcribed
from torch import Tensor
from transcriptions.localsgdm_rl import ratios

import fedsys
from fedsys.algorithms import LocalSGDM, LocalSGDMRL
from fedsys.communication import LocalTransport
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import Imbalance
from fedsys.models import MLP
from fedsys.problems import MonitoredRatioLoss
from fedsys.problems.networks.ratio_monitor import monitor_ratios


def test_localsgdm_rl_agrees_with_its_transcription_step_by_step() -> None:
    drive = Drive(Case(ALGORITHM, LOGISTIC), LocalTransport())
    states = drive.states(STEPS)
    next(states)
    for state, expected in zip(states, transcribed(), strict=True):
        for name, rows in expected.items():
            np.testing.assert_allclose(state.tensors()[name], rows, rtol=1e-11, atol=1e-12)
    assert len({*map(tuple, expected["alpha"].tolist())}) == 1
    assert abs(expected["alpha"][0, 0] - expected["alpha"][0, 1]) > 0.01


def test_the_first_round_weights_classes_equally_and_estimates_are_used_a_round_later() -> None:
    drive = Drive(Case(ALGORITHM, LOGISTIC), LocalTransport())
    alphas = [s.tensors() for s in drive.states(9)]
    assert [a["alpha"][0].tolist() for a in alphas[:4]] == [[1.0, 1.0]] * 4
    assert torch.equal(alphas[4]["alpha"], alphas[0]["next_alpha"])
    assert torch.equal(alphas[8]["alpha"], alphas[4]["next_alpha"])


def changes(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)[:, None, :]


def test_the_ratios_match_values_computed_by_hand() -> None:
    # Entry 0 is raised most by class 0, and 0.9 times as much by class 1, so it belongs to no
    # class. Entry 1 belongs to class 0, with changes 4 against 1 and -2. Entries 2 and 3 belong to
    # class 1, with changes 3 + 5 against 1 and 2, -1 and 0. Class 2 has no entry.
    found = changes([1.0, 4.0, 1.0, 2.0], [0.9, 1.0, 3.0, 5.0], [0.0, -2.0, -1.0, 0.0])
    expected = [4 / abs((1 - 2) / 2), 8 / ((1 - 1 + 2 + 0) / 2), 10]
    assert monitor_ratios(found).tolist() == pytest.approx(expected, abs=1e-15)
    assert ratios(found.numpy()).tolist() == pytest.approx(expected, abs=1e-15)
    assert monitor_ratios(changes([2e4, 0.0], [1.0, 0.0])).tolist() == [5000, 10]


def test_classes_with_the_same_effect_on_the_layer_get_equal_weights() -> None:
    found = monitor_ratios(changes([3.0, -1.0, 3.0, -1.0], [-1.0, 3.0, -1.0, 3.0]))
    assert found[0] == found[1] == 3


def test_the_server_has_the_same_number_of_samples_of_both_classes() -> None:
    site = Site(Placement(2), kind="monitored")
    rare = replace(MONITORED, imbalance=Imbalance(0.05), auxiliary=63).oracle(site)
    assert [len(samples) for samples in rare._auxiliary] == [6, 6]
    every = replace(MONITORED, auxiliary=63).oracle(site)
    assert [len(samples) for samples in every._auxiliary] == [63, 63]


def test_a_rare_class_gets_the_larger_weight_once_the_network_neglects_it() -> None:
    problem = MonitoredRatioLoss(Clouds(), model=MLP([8]), batch_size=8, imbalance=Imbalance(0.05))
    algorithm = LocalSGDMRL(lr=0.1, local_steps=5)
    result = fedsys.run(problem, algorithm, rounds=30, clients=2, evaluate_every=30)
    negative, positive = result.state.tensors()["alpha"][0].tolist()
    assert positive > negative
    assert result.records[-1]["test_auc"] > 0.6


def test_algorithms_without_a_monitor_are_referred_to_the_exact_counts() -> None:
    with pytest.raises(InputError, match="use problem=ratio_loss, whose weights come from"):
        fedsys.run(MONITORED, LocalSGDM(), steps=1, clients=2)
    with pytest.raises(InputError, match="LocalSGDMRL needs a monitored problem"):
        fedsys.run(fedsys.problems.BinaryClassification(Clouds()), ALGORITHM, steps=1, clients=2)
