"""The registry of metrics: one place says what each metric means."""

from __future__ import annotations

from typing import Any

import pytest
from support.cases import CASES, NEUMANN, Case

import fedsys
from fedsys import problems
from fedsys.algorithms import LSGD, FedBiO
from fedsys.core import metrics
from fedsys.core.errors import InputError
from fedsys.core.metrics import (
    Metric,
    client_metrics_of,
    headline,
    importance,
    metric,
    metrics_of,
    register_metric,
)
from fedsys.models import MLP
from fedsys.training.summary import best

VARIATIONAL = LSGD(lr=0.01, local_steps=2)
BILEVEL = FedBiO(lr=0.1, inner_lr=0.1, hypergradient=NEUMANN, local_steps=2)
MORE_CASES = {
    "bilinear": Case(VARIATIONAL, problems.BilinearGame()),
    "toy": Case(VARIATIONAL, problems.HeterogeneousToy()),
    "two_points": Case(VARIATIONAL, problems.TwoPoints()),
    "logcosh_saddle": Case(VARIATIONAL, problems.LogCoshSaddle()),
    "skew_saddle": Case(VARIATIONAL, problems.SkewSaddle()),
    "robust_least_squares": Case(VARIATIONAL, problems.RobustLeastSquares(rows=60)),
    "synthetic_saddle": Case(VARIATIONAL, problems.SyntheticSaddle()),
    "hyper_cleaning": Case(BILEVEL, problems.HyperCleaning(model=MLP(hidden=[]), batch_size=5)),
}
ALL_CASES = {**CASES, **MORE_CASES}
OF_FUNCTIONS = {
    "VariationalProblem",
    "MinimaxProblem",
    "MinimisationProblem",
    "CompositionalProblem",
}
NOT_PROBLEMS = {"Hypergradient", "ExactHypergradient", "NeumannHypergradient"}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Metric]:
    """A copy of the registry, which the test may change."""
    copy = dict(metrics._registry)
    monkeypatch.setattr(metrics, "_registry", copy)
    return copy


@pytest.mark.parametrize("name", ALL_CASES)
def test_every_recorded_metric_is_registered_and_has_a_meaning(name: str) -> None:
    case = ALL_CASES[name]
    clients = 2 if name == "two_points" else 6
    result = fedsys.run(case.problem, case.algorithm, rounds=1, clients=clients, dtype="float64")
    recorded = {name for record in result.records for name in metrics_of(record)}
    assert recorded
    assert [name for name in recorded if not metric(name).meaning] == []


def test_the_cases_above_cover_every_problem_of_the_package() -> None:
    tested = {type(case.problem).__name__ for case in ALL_CASES.values()}
    assert tested >= set(problems.__all__) - OF_FUNCTIONS - NOT_PROBLEMS - {"BilevelProblem"}


def test_every_registered_metric_has_one_sentence_as_its_meaning() -> None:
    for one in metrics.registered_metrics().values():
        assert one.meaning.endswith("."), one.name
        assert one.meaning[0].isupper(), one.name


@pytest.mark.parametrize(
    ("name", "better", "meaning"),
    [
        ("average_gap", "lower", "at the averaged iterate"),
        ("average_test_auc", "higher", "at the averaged iterate"),
        ("sampled_train_loss", "lower", "of a single random draw"),
        ("test_eqopp_std", "lower", "on the test set"),
        ("train_accuracy", "higher", "on the training set"),
    ],
)
def test_a_derived_metric_has_the_direction_of_its_base(
    name: str, better: str, meaning: str
) -> None:
    derived = metric(name)
    assert (derived.name, derived.better) == (name, better)
    assert meaning in derived.meaning


@pytest.mark.parametrize(
    ("name", "lower"),
    [("my_loss", True), ("weight_norm", True), ("reward", False), ("test_f1", False)],
)
def test_the_direction_of_an_unknown_metric_is_guessed_from_its_name(
    name: str, lower: bool
) -> None:
    assert metric(name).lower_is_better is lower
    assert metric(name).axis == ("log" if lower else "linear")
    assert not metric(name).meaning
    assert not metric(name).headline


def test_the_headline_is_the_first_of_the_preferred_metrics_that_a_record_has() -> None:
    place = {"step": 0.0, "round": 0.0, "bytes_up": 0.0}
    others = {"drift": 0.0, "average_gap": 0.0, "sampled_train_loss": 0.0}
    assert headline({**place, **others, "gap": 0.0, "test_auc": 0.0}) == "test_auc"
    assert headline({**place, **others, "gap": 0.0}) == "gap"
    assert headline({**place, **others}) == "sampled_train_loss"
    assert headline({**place, "drift": 0.0, "average_gap": 0.0}) == "drift"
    assert headline({**place, "mine": 0.0, "yours": 0.0}) == "mine"
    assert headline(place) == "step"


def test_metrics_are_ordered_by_preference_then_by_name() -> None:
    names = ["a", "drift", "sampled_train_loss", "train_loss", "sampled_operator_norm", "test_auc"]
    assert sorted(names, key=importance) == [
        *("test_auc", "train_loss", "sampled_operator_norm", "sampled_train_loss", "a", "drift")
    ]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("gap", [1.0, 0.5, 0.01], True),
        ("gap", [1.0, 0.5, 0.2], False),
        ("gap", [1.0, -0.5, 0.01, 0.0], False),
        ("gap", [float("inf"), 1.0, 0.01], True),
        ("test_auc", [1.0, 0.01], False),
    ],
)
def test_a_figure_has_a_log_axis_where_positive_values_span_more_than_a_decade(
    name: str, values: list[float], expected: bool
) -> None:
    assert metric(name).needs_log_axis(values) is expected


def test_a_user_can_register_a_metric(registry: dict[str, Metric]) -> None:
    mine = register_metric(Metric("regret", "Sum of losses.", "lower", "linear", headline=True))
    assert register_metric(mine) is mine, "the same again is no conflict"
    assert metric("regret") is mine
    assert headline({"step": 0.0, "drift": 0.0, "regret": 0.0}) == "regret"
    assert best([{"test_regret": 1.0}, {"test_regret": 3.0}]) == {"test_regret": 1.0}
    with pytest.raises(InputError, match="metric regret is registered already"):
        register_metric(Metric("regret", better="higher"))


@pytest.mark.parametrize("choice", [{"better": "smaller"}, {"axis": "cubic"}])
def test_a_metric_with_an_unknown_choice_is_refused(choice: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"metric mine: (better|axis) must be"):
        Metric("mine", **choice)


def test_lists_of_clients_are_no_metrics_and_keep_the_meaning_of_theirs() -> None:
    record = {"step": 0, "test_auc": 0.5, "test_auc_clients": [0.4, None]}
    assert metrics_of(record) == {"test_auc": 0.5}
    assert client_metrics_of(record) == {"test_auc": [0.4, None]}
    assert headline({"step": 0, "test_auc_clients": [0.4]}) == "step"
    of_each = metric("test_auc_clients")
    assert (of_each.better, of_each.headline) == ("higher", False)
    assert of_each.meaning.endswith("of each client.")
    assert metric("train_loss_clients").lower_is_better
