"""The test AUC of clients that own their data, in every mode, and that of each client."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from support.hospitals import Hospitals, hospital_problem, hospital_run
from support.processes import Ranks

import fedsys
from fedsys.core.errors import InputError
from fedsys.core.metrics import client_metrics_of, headline, metric, metrics_of
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.problems import DeepAUC
from fedsys.problems.networks.score_evaluation import MODES, equal_scores, summed_counts

METRICS = ("average_precision", "sensitivity_at_specificity", "calibration_error", "partial_auc")


def aucs_by_hand(result: fedsys.Result) -> tuple[float, list[float], list[int]]:
    """The AUC of the final network on all test samples, and on those of each client."""
    data = Hospitals().load_owned(Site(Placement(3)))
    net = fedsys.models.MLP([3]).build((4,), 1).double()
    prefix = "net."
    own = {k.removeprefix(prefix): v for k, v in result.variables.items() if k.startswith(prefix)}
    net.load_state_dict(own)
    scores = net(data.test_inputs)[:, 0].detach().numpy()
    labels, owners = data.test_labels.numpy(), data.test_owners
    assert owners is not None
    members = [(owners == client).numpy() for client in range(3)]
    each = [float(roc_auc_score(labels[mine], scores[mine])) for mine in members]
    return float(roc_auc_score(labels, scores)), each, [int(mine.sum()) for mine in members]


def test_the_pooled_auc_and_that_of_each_client_are_those_of_scikit_learn() -> None:
    result = hospital_run(hospital_problem(evaluation="pooled"))
    pooled, each, _ = aucs_by_hand(result)
    final = result.records[-1]
    assert final["test_auc"] == pytest.approx(pooled, abs=1e-6)
    assert final["test_auc_clients"] == pytest.approx(each, abs=1e-6)
    assert "test_auc_error_bound" not in final


def test_the_histogram_is_the_default_of_owned_data_and_keeps_its_bound() -> None:
    result = hospital_run(hospital_problem())
    pooled, each, _ = aucs_by_hand(result)
    final = result.records[-1]
    assert abs(final["test_auc"] - pooled) <= final["test_auc_error_bound"] < 0.05
    assert final["test_auc_clients"] == pytest.approx(each, abs=1e-6)


def test_the_local_mean_is_weighted_by_the_test_samples() -> None:
    result = hospital_run(hospital_problem(evaluation="local"))
    _, each, sizes = aucs_by_hand(result)
    expected = sum(n * auc for n, auc in zip(sizes, each, strict=True)) / sum(sizes)
    assert result.records[-1]["test_auc"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("evaluation", ["pooled", "histogram", "local"])
def test_a_client_with_one_class_has_no_auc(evaluation: str) -> None:
    result = hospital_run(hospital_problem(Hospitals(single=1), evaluation), rounds=1)
    final = result.records[-1]
    assert final["test_auc_clients"][1] is None
    assert 0 <= final["test_auc"] <= 1
    named = [line for line in result.warnings if line.endswith("left out of test_auc: 1")]
    assert len(named) == (evaluation == "local")


@pytest.mark.parametrize("evaluation", ["pooled", "histogram", "local"])
def test_the_metrics_of_each_client_can_be_left_out(evaluation: str) -> None:
    result = hospital_run(hospital_problem(evaluation=evaluation, each_client=False), rounds=1)
    assert client_metrics_of(result.records[-1]) == {}
    assert "test_auc" in result.records[-1]


def test_further_metrics_are_recorded_for_all_and_for_each_client() -> None:
    result = hospital_run(hospital_problem(evaluation="pooled", metrics=METRICS), rounds=1)
    final = result.records[-1]
    for name in METRICS:
        assert 0 <= final[f"test_{name}"] <= 1
        assert len(final[f"test_{name}_clients"]) == 3
        assert metric(f"test_{name}").meaning
        assert metric(f"test_{name}_clients").meaning
    assert metric("test_calibration_error").lower_is_better
    assert not metric("test_partial_auc").lower_is_better


def test_lists_are_no_headline_and_no_metric_of_the_run() -> None:
    final = hospital_run(hospital_problem(), rounds=1).records[-1]
    assert headline(final) == "test_auc"
    assert "test_auc_clients" not in metrics_of(final)
    assert {*client_metrics_of(final)} == {"test_auc"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluation": "exact"}, "evaluation must be auto or pooled or histogram or local"),
        ({"metrics": ["f1"]}, "metrics must be among average_precision"),
        ({"specificity": 0.0}, "specificity must be above 0 and at most 1, got 0.0"),
        ({"max_fpr": 1.5}, "max_fpr must be above 0 and at most 1, got 1.5"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DeepAUC(**options)
    assert "auto" in MODES


def test_a_mode_that_does_not_fit_the_data_is_refused() -> None:
    with pytest.raises(InputError, match="evaluation=local is the mean over clients that own"):
        DeepAUC(evaluation="local").oracle(Site())
    with pytest.raises(InputError, match="evaluation=histogram does not gather"):
        hospital_run(hospital_problem(metrics=["partial_auc"]))


def test_the_histogram_of_a_common_test_part_is_within_its_bound_of_the_pooled_auc() -> None:
    pooled, counted = (
        fedsys.run(
            DeepAUC(evaluation=mode),
            fedsys.algorithms.LocalSGDA(lr_x=0.1, lr_y=0.1, local_steps=2),
            rounds=1,
            dtype="float64",
        ).records[-1]
        for mode in ("pooled", "histogram")
    )
    assert abs(pooled["test_auc"] - counted["test_auc"]) <= counted["test_auc_error_bound"] + 1e-6
    assert "test_auc_clients" not in pooled


def test_counts_are_added_before_they_leave_a_process() -> None:
    logits, labels = torch.linspace(-2, 2, 12), torch.arange(12) % 2
    parts = logits.split(5), labels.split(5)
    rows = summed_counts(*parts)
    assert rows.shape[0] == 3
    assert rows[1:].count_nonzero() == 0
    assert int(rows.sum()) == 12


def test_scores_that_hardly_differ_are_warned_of() -> None:
    assert "hardly differ" in str(equal_scores(torch.zeros(5)))
    assert equal_scores(torch.linspace(-1, 1, 5)) is None


def records(evaluation: str) -> list[dict[str, Any]]:
    return hospital_run(hospital_problem(Hospitals(single=2), evaluation), rounds=2).records


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("evaluation", ["pooled", "histogram", "local"])
def test_the_metrics_of_each_client_do_not_depend_on_the_placement(
    ranks: Ranks, evaluation: str
) -> None:
    alone = records(evaluation)
    for count in (2, 3):
        first = ranks(count, records, evaluation)[0]
        for one, other in zip(alone, first, strict=True):
            for name in metrics_of(one):
                assert other[name] == pytest.approx(one[name], abs=1e-12)
            assert other["test_auc_clients"] == pytest.approx(one["test_auc_clients"], abs=1e-12)
