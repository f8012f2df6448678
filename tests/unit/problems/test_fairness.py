"""Group-fair learning: rates computed by hand, tables, validation sets and group weights."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.cases import FAIR, GroupedClouds
from support.processes import run_python
from test_problems import unmetered

import fedsys
from fedsys.algorithms import FCFL, FedAvg, FedBiO, FedMinMax
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import Adult, Digits, German, GroupedDataset
from fedsys.problems import GroupFair
from fedsys.problems.bilevel.reweighting import GroupWeighting
from fedsys.problems.fairness.group_metrics import (
    confusion,
    group_table,
    largest_difference_interval,
    soft_disparity,
    unfairness,
    wilson,
)

SITE = Site(Placement(3), dtype=torch.float64, kind="bilevel")
REAL = Path(os.environ.get("FEDSYS_DATA", "nowhere"))

# Group 0 has 2 of 2 positives right and 1 of 4 negatives wrong; group 1 has 1 of 4 positives right
# and no negative.
SCORES = torch.tensor([[1.0, 2, 1, -1, -1, -1, 3, -1, -2, -1]])
LABELS = torch.tensor([[1, 1, 0, 0, 0, 0, 1, 1, 1, 1]])
GROUPS = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1, 1, 1]])
ALL = torch.ones(1, 10, dtype=torch.bool)
SLOPE = torch.tensor([1.0, -1, 0], dtype=torch.float64)


class TestRates:
    def test_match_values_computed_by_hand(self) -> None:
        counts = confusion(SCORES, LABELS, GROUPS, 3, ALL)[0]
        assert counts.tolist() == [[[3, 1], [0, 2]], [[0, 0], [3, 1]], [[0, 0], [0, 0]]]
        rates = {"accuracy": 0.6, "eqopp": 0.75, "eqodds": 0.75, "parity": 0.25}
        assert unfairness(counts).items() >= rates.items()

    def test_equalised_odds_include_false_positives(self) -> None:
        counts = torch.tensor([[[1.0, 3], [1, 1]], [[4, 0], [0, 2]]], dtype=torch.float64)
        rates = {"accuracy": 8 / 12, "eqopp": 0.5, "eqodds": 0.75}
        assert unfairness(counts).items() >= rates.items()

    def test_have_standard_deviations_over_groups_and_over_positives(self) -> None:
        # True-positive rates 1 of 1, 0 of 3 and 1/2 of 4; one group has no positives.
        cells = [[[5, 0], [0, 1]], [[5, 0], [3, 0]], [[5, 0], [2, 2]], [[5, 0], [0, 0]]]
        found = unfairness(torch.tensor(cells, dtype=torch.float64))
        assert found["eqopp_std"] == pytest.approx((1 / 6) ** 0.5)
        # The mean over 8 positives is 3/8: (1 * 25 + 3 * 9 + 4 * 1) / 64 / 8.
        assert found["eqopp_weighted_std"] == pytest.approx((56 / 512) ** 0.5)

    def test_have_wilsons_interval(self) -> None:
        # Newcombe (Statistics in Medicine, 1998), Table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
        for hits, size, low, high in (
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ):
            assert wilson(hits, size) == pytest.approx((low, high), abs=5e-5)

    def test_have_an_interval_of_the_largest_difference_that_covers_it(self) -> None:
        stream = np.random.default_rng(0)
        rates, sizes = np.array([0.5, 0.6, 0.7]), np.array([8, 100, 2000])
        covered = 0
        for _ in range(400):
            hits = stream.binomial(sizes, rates)
            counts = torch.from_numpy(np.stack([sizes - hits, hits], axis=1))
            low, high = largest_difference_interval(counts)
            assert low <= (hits / sizes).max() - (hits / sizes).min() <= high
            covered += low <= 0.2 <= high
        assert covered >= 0.95 * 400

    def test_of_a_single_group_have_no_difference(self) -> None:
        alone = torch.tensor([[[1.0, 3], [1, 1]], [[4, 0], [0, 0]]])
        found = unfairness(alone)
        assert [found[f"eqopp{n}"] for n in ("", "_low", "_high", "_std")] == [0, 0, 0, 0]

    def test_of_padding_do_not_count(self) -> None:
        valid = ALL.clone()
        valid[0, 6:] = False
        assert confusion(SCORES, LABELS, GROUPS, 2, valid)[0, 1].sum() == 0

    def test_over_no_samples_are_null_in_the_table(self) -> None:
        table = group_table(confusion(SCORES, LABELS, GROUPS, 2, ALL)[0], ("a", "b"))
        assert table["b"] == {
            "rows": 4,
            "positives": 4,
            "accuracy": 0.25,
            "positive_rate": 0.25,
            "true_positive_rate": 0.25,
            "true_positive_interval": list(wilson(1, 4)),
            "false_positive_rate": None,
        }


class TestTheSoftDisparity:
    def test_of_large_scores_is_the_difference_of_rates(self) -> None:
        value, _ = soft_disparity(10 * SCORES, LABELS, GROUPS, 2, ALL)
        assert value.tolist() == pytest.approx([0.75])

    def test_has_the_gradient_of_autograd(self) -> None:
        stream = np.random.default_rng(0)
        scores = torch.from_numpy(stream.normal(0, 0.1, (4, 12))).requires_grad_()
        labels, groups = (torch.from_numpy(stream.integers(0, n, (4, 12))) for n in (2, 3))
        value, slope = soft_disparity(scores, labels, groups, 3, torch.ones(4, 12))
        (expected,) = torch.autograd.grad(value.sum(), scores)
        assert float(value.detach().min()) > 0
        torch.testing.assert_close(slope, expected)

    def test_is_zero_with_positives_in_fewer_than_two_groups(self) -> None:
        value, slope = soft_disparity(SCORES, LABELS * (GROUPS == 0), GROUPS, 2, ALL)
        assert value.tolist() == [0]
        assert float(slope.abs().max()) == 0
        value, slope = soft_disparity(SCORES, 0 * LABELS, GROUPS, 2, ALL)
        assert value.tolist() == [0]
        assert float(slope.abs().max()) == 0


def credit(folder: Path, rows: int = 60, label: str | None = None) -> Path:
    """A table like German Credit: statuses A91, A92, A93 in turn, every third row a bad risk."""
    lines = [
        (
            f"A11 {6 + i} A34 A410 1000 A61 A71 4 A9{1 + i % 3} A101 2 A121 {20 + i} A143 A152 1 "
            f"A173 1 A192 A201 {label or 1 + (i // 3) % 3 // 2}"
        )
        for i in range(rows)
    ]
    (folder / "german").mkdir()
    (folder / "german" / "german.data").write_text("\n".join(lines) + "\n")
    return folder


class TestTables:
    def test_german_codes_become_their_last_digit_and_columns_are_divided_by_their_magnitude(
        self, tmp_path: Path
    ) -> None:
        data = German(root=str(credit(tmp_path)), preparation="with_group").load()
        assert data.train_inputs.shape == (42, 20)
        assert data.test_inputs.shape == (18, 20)
        assert data.group_names == ("A91", "A92", "A93")
        assert torch.bincount(data.train_groups).tolist() == [14, 14, 14]
        assert data.train_inputs[:, 3].unique().tolist() == [0]  # A410
        assert data.train_inputs[:, 4].unique().tolist() == [1]  # 1000 by 1000
        assert float(data.train_inputs[:, 12].max()) <= 7.9  # ages by 10
        assert data.description["groups"]["A91"]["train"]["rows"] == 14
        assert data.description["features"]["amount"] == {"shift": 0.0, "scale": 1000.0}

    def test_standard_scaling_centres_the_training_set(self, tmp_path: Path) -> None:
        data = German(root=str(credit(tmp_path)), scaling="standard").load()
        assert data.train_inputs.shape == (42, 19)
        ages = data.train_inputs[:, 11]
        assert float(ages.mean()) == pytest.approx(0, abs=1e-6)
        assert float(ages.std(correction=0)) == pytest.approx(1, abs=1e-6)

    def test_another_seed_gives_another_test_set(self, tmp_path: Path) -> None:
        table = German(root=str(credit(tmp_path)))
        first, again, other = (replace(table, seed=s).load() for s in (0, 0, 1))
        assert torch.equal(first.test_inputs, again.test_inputs)
        assert not torch.equal(first.test_inputs, other.test_inputs)

    def test_a_label_column_with_one_class_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"column risk of .* has one class only \(0, in all"):
            German(root=str(credit(tmp_path, label="1"))).load()

    def test_a_missing_file_is_named_with_a_remedy(self, tmp_path: Path) -> None:
        wanted = r"does not hold adult.data .*set FEDSYS_DATA .*download"
        with pytest.raises(InputError, match=wanted):
            Adult(root=str(tmp_path)).load()

    def test_a_file_in_another_format_is_refused(self, tmp_path: Path) -> None:
        folder = credit(tmp_path)
        (folder / "german" / "german.data").write_text("A11 6 A34\n")
        with pytest.raises(InputError, match=r"row 1 of .* has 3 fields, not 21"):
            German(root=str(folder)).load()

    @pytest.mark.skipif(not (REAL / "adult").is_dir(), reason="needs FEDSYS_DATA")
    def test_the_real_adult_has_the_counts_of_the_paper(self) -> None:
        data = Adult(root=str(REAL)).load()
        assert data.train_inputs.shape[1] == 220
        assert not any(name.startswith("race") for name in data.description["features"])
        groups = data.description["groups"]
        rows = {n: sum(g[p]["rows"] for p in ("train", "test")) for n, g in groups.items()}
        assert rows == {
            "White": 27816,
            "Black": 3124,
            "Asian-Pac-Islander": 1039,
            "Amer-Indian-Eskimo": 311,
            "Other": 271,
        }

    @pytest.mark.skipif(not (REAL / "adult").is_dir(), reason="needs FEDSYS_DATA")
    @pytest.mark.parametrize(("preparation", "width"), [("plain", 102), ("with_group", 107)])
    def test_the_real_adult_has_the_width_of_each_other_preparation(
        self, preparation: str, width: int
    ) -> None:
        data = Adult(root=str(REAL), preparation=preparation).load()
        assert data.train_inputs.shape[1] == width
        assert data.description["preparation"] == preparation

    def test_adult_has_one_column_per_capital_gain_like_the_authors_code(
        self, tmp_path: Path
    ) -> None:
        row = "39, Private, 7, HS, 13, Single, Sales, Own, {}, {}, {}, 0, 40, Cuba, {}"
        people = [
            row.format(("White", "Black")[i % 2], ("Male", "Female")[i // 2 % 2], 100 * (i % 3),
                       ("<=50K", ">50K")[i % 2])
            for i in range(24)
        ]  # fmt: skip
        (tmp_path / "adult").mkdir()
        (tmp_path / "adult" / "adult.data").write_text("\n".join(people) + "\n")
        names = {
            preparation: list(
                Adult(root=str(tmp_path), preparation=preparation).load().description["features"]
            )
            for preparation in ("authors", "plain", "with_group")
        }
        gains = {f"capital-gain={gain}" for gain in (0, 100, 200)}
        assert set(names["authors"]) - set(names["plain"]) == gains
        assert set(names["plain"]) - set(names["authors"]) == {"capital-gain"}
        assert set(names["with_group"]) - set(names["plain"]) == {"race=White"}

    def test_an_unknown_preparation_is_refused(self) -> None:
        with pytest.raises(InputError, match="preparation must be one of authors, plain, with_gr"):
            Adult(preparation="raw")


@dataclass(frozen=True)
class GivenParts:
    """A partition with given indices of samples for each client."""

    parts: tuple[tuple[int, ...], ...]

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        return [np.array(part) for part in self.parts]


@dataclass(frozen=True)
class TwoGroups:
    """12 samples: nine of group 0, then three of group 1."""

    def load(self) -> GroupedDataset:
        inputs = torch.arange(24.0).view(12, 2)
        labels, groups = torch.arange(12) % 2, torch.tensor([0] * 9 + [1] * 3)
        halves = (inputs, labels, inputs, labels)
        return GroupedDataset(
            *halves,
            classes=2,
            train_groups=groups,
            test_groups=groups,
            group_names=("many", "few"),
            description={"table": "tiny"},
        )


def test_a_part_of_a_table_has_the_groups_of_its_samples() -> None:
    part = TwoGroups().load().take(torch.tensor([0, 9]), torch.tensor([10, 1, 11]))
    assert part.train_groups.tolist() == [0, 1]
    assert part.test_groups.tolist() == [1, 0, 1]


def two_groups(*parts: tuple[int, ...]) -> GroupFair:
    return GroupFair(TwoGroups(), partition=GivenParts(parts), batch_size=None)


class TestValidation:
    def test_takes_samples_of_every_group_from_each_client(self) -> None:
        oracle = FAIR.oracle(SITE)
        held = oracle.validation.whole
        assert held.tags.shape == (3, 6)
        assert [torch.bincount(row).tolist() for row in held.tags] == [[2, 2, 2]] * 3
        assert sum(oracle.train.sizes) + 18 == 210

    def test_of_labels_takes_the_same_number_of_each_label(self) -> None:
        held = replace(FAIR, validation="labels").oracle(SITE).validation.whole
        for labels, groups in zip(held.labels, held.tags, strict=True):
            assert torch.bincount(2 * groups + labels).tolist() == [2] * 6

    def test_of_positives_has_no_other_label(self) -> None:
        oracle = replace(FAIR, validation="positives").oracle(SITE)
        assert float(oracle.validation.whole.labels.min()) == 1

    def test_takes_at_most_half_of_a_group_and_weights_groups_equally(self) -> None:
        oracle = two_groups((0, 1, 2, 3, 9, 10), (4, 5, 6, 7, 8, 11)).oracle(
            replace(SITE, placement=Placement(2))
        )
        counts = oracle.describe()["validation"]
        assert [{n: c["rows"] for n, c in row.items()} for row in counts] == [
            {"many": 2, "few": 1},
            {"many": 2, "few": 0},  # the only sample of group few stays in the training set
        ]
        masses = oracle.validation.whole.mass
        assert masses.tolist() == [[0.25, 0.25, 0.5], [0.5, 0.5, 0]]

    def test_of_a_client_without_members_of_a_group_covers_the_other_groups(self) -> None:
        problem = two_groups((0, 1, 2, 3), (4, 5, 6, 7, 8, 9, 10, 11))
        result = fedsys.run(problem, FedBiO(lr=1e-6, local_steps=1), steps=3, clients=2)
        assert result.report is not None
        assert {"group_weights", "train", "test", "remarks"} <= set(result.report)
        result = fedsys.run(problem, FedMinMax(), steps=3, clients=2)
        assert torch.isfinite(result.variables["0.weight"]).all()
        result = fedsys.run(problem, FCFL(first_stage=2), steps=3, clients=2)
        assert torch.isfinite(result.variables["0.weight"]).all()

    def test_refuses_a_group_that_no_client_can_validate(self) -> None:
        problem = two_groups((0, 1, 2, 9), (3, 4, 5, 10), (6, 7, 8, 11))
        with pytest.raises(InputError, match="no client has two samples of group few"):
            problem.oracle(SITE)

    def test_refuses_a_client_that_can_validate_no_group(self) -> None:
        problem = two_groups((0, 9), (1, 2, 3, 4, 10, 11))
        with pytest.raises(InputError, match="client 0 has no group with two samples"):
            problem.oracle(replace(SITE, placement=Placement(2)))

    def test_refuses_data_without_groups(self) -> None:
        with pytest.raises(InputError, match="Digits does not have; use dataset=adult"):
            GroupFair(Digits()).oracle(SITE)


class TestWeights:
    SHARES = torch.tensor([[0.8, 0.15, 0.05], [0.2, 0.2, 0.6]], dtype=torch.float64)
    X = torch.tensor([[2.0, -1, 0.5], [0, 3, -2]], dtype=torch.float64)

    def test_have_mean_1_over_the_samples_of_a_client(self) -> None:
        weights = GroupWeighting(self.SHARES).weights(self.X)
        torch.testing.assert_close((self.SHARES * weights).sum(1), torch.ones(2).double())
        torch.testing.assert_close(weights[:, 0] / weights[:, 1], (self.X @ SLOPE).exp())

    def test_can_have_mean_1_over_the_groups(self) -> None:
        weights = GroupWeighting().weights(self.X)
        torch.testing.assert_close(weights.mean(1), torch.ones(2).double())
        thirds = torch.full((2, 3), 1 / 3, dtype=torch.float64)
        torch.testing.assert_close(weights, GroupWeighting(thirds).weights(self.X))

    @pytest.mark.parametrize("shares", [None, SHARES], ids=["groups", "samples"])
    def test_have_the_derivative_of_autograd(self, shares: torch.Tensor | None) -> None:
        stream = np.random.default_rng(0)
        tags = torch.from_numpy(stream.integers(0, 3, (2, 7)))
        q = torch.from_numpy(stream.normal(size=(2, 7)))
        weighting, x = GroupWeighting(shares), self.X.clone().requires_grad_()
        (expected,) = torch.autograd.grad((weighting(x, tags) * q).sum(), x)
        torch.testing.assert_close(weighting.pull(self.X, tags, q), expected)

    def test_are_those_of_the_training_samples_and_not_of_the_validation(self) -> None:
        oracle = FAIR.oracle(SITE)
        x = torch.tensor([1.0, -1, 0], dtype=torch.float64).expand(3, -1)
        xi = oracle.train.whole
        means = (oracle.weighting(x, xi.tags) * xi.mass).sum(1)
        torch.testing.assert_close(means, torch.ones(3).double())
        problem = replace(FAIR, normalisation="groups")
        found = problem.oracle(SITE).weighting(x, torch.arange(3).expand(3, -1))
        torch.testing.assert_close(found, 3 * x.softmax(1))

    def test_below_0_3_cause_a_warning(self) -> None:
        oracle = FAIR.oracle(SITE)
        z = oracle.z0.clone()
        z[:, 0] = 5.0
        with torch.no_grad():
            found = oracle.report(z, unmetered(3))
        names = list(found["group_weights"])
        assert found["group_weights"][names[1]] < 0.3
        (line,) = found["warnings"]
        assert line.startswith(f"the learned weights of {names[1]}, {names[2]} are below 0.3")

    def test_below_0_3_cause_a_warning_in_python(self) -> None:
        steep = FedBiO(lr=1e4, local_steps=1)
        with pytest.warns(RuntimeWarning, match="the learned weights of .* are below 0.3"):
            fedsys.run(FAIR, steep, steps=3, clients=3)


def test_each_private_classifier_is_evaluated_on_its_own_samples() -> None:
    first = FedBiO(lr=0.5, inner_lr=0.3, local_steps=2)
    result = fedsys.run(FAIR, first, steps=20, clients=3, dtype="float64")
    oracle = FAIR.oracle(SITE)
    losses, hits, test_hits, people = [], 0, 0, 0
    data = FAIR.dataset.load()
    for client, y in enumerate(result.state.tensors()["y"]):
        held, mine = oracle.validation.whole, oracle._metrics.train
        score = lambda inputs: inputs.double() @ y[:-1] + y[-1]  # noqa: B023, E731
        z, s = score(held.inputs[client]), held.labels[client]
        losses.append((held.mass[client] * (torch.log1p(z.exp()) - s * z)).sum())
        real = mine.mass[client] > 0
        right = (score(mine.inputs[client]) > 0) == (mine.labels[client] == 1)
        hits, people = hits + int(right[real].sum()), people + int(real.sum())
        test_hits += int(((score(data.test_inputs) > 0) == (data.test_labels == 1)).sum())
    final = result.records[-1]
    assert final["outer_loss"] == pytest.approx(float(torch.stack(losses).mean()))
    assert final["train_accuracy"] == pytest.approx(hits / people)
    assert final["test_accuracy"] == pytest.approx(test_hits / 3 / len(data.test_labels))


def test_fedminmax_with_constant_weights_is_fedavg_with_one_local_step() -> None:
    still, plain = (
        fedsys.run(FAIR, algorithm, steps=30, clients=3, dtype="float64").variables
        for algorithm in (FedMinMax(lr=0.3, weight_lr=1e-15), FedAvg(lr=0.3, local_steps=1))
    )
    torch.testing.assert_close(still, plain, rtol=0, atol=1e-12)


def test_fedminmax_lowers_the_risk_of_the_worst_group() -> None:
    def worst(algorithm: FedMinMax | FedAvg) -> float:
        problem = GroupFair(GroupedClouds(), batch_size=None)
        result = fedsys.run(problem, algorithm, steps=400, clients=3)
        oracle = problem.oracle(replace(SITE, dtype=torch.float32, kind="grouped"))
        x = torch.cat([v.flatten() for v in result.variables.values()]).expand(3, -1)
        _, parts = oracle.weighted_grad(x, torch.ones(3, 3), oracle.draw())
        return float((parts.sum(0) / oracle.group_shares.sum(0)).max())

    assert worst(FedMinMax(lr=0.3)) < 0.9 * worst(FedAvg(lr=0.3, local_steps=1))


def test_the_run_directory_contains_the_preparation_of_the_data_and_a_table_of_groups(
    tmp_path: Path,
) -> None:
    credit(tmp_path)
    arguments = ["problem=fair_german", "algorithm=fair/fedbio", "model=logistic", "clients=3"]
    stages = ["steps=10", "algorithm.fit_from=5", "evaluate_every=10", "run.dir=run"]
    done = run_python(
        tmp_path, "-m", "fedsys", *arguments, *stages, f"problem.dataset.root={tmp_path}"
    )
    assert done.returncode == 0, done.stderr
    data, report = (
        json.loads((tmp_path / "run" / name).read_text()) for name in ("data.json", "report.json")
    )
    assert data["groups"]["A93"]["test"]["rows"] == 6
    assert len(data["clients"]) == len(data["validation"]) == 3
    assert len(data["features"]) == 19
    assert report["group_weights"].keys() == {"A91", "A92", "A93"}
    assert {row["rows"] for row in report["train"].values()} == {14}
    listed = ", ".join(f"{n} {w:.3g}" for n, w in report["group_weights"].items())
    assert f"group weights: {listed}" in done.stdout
    assert "positives in the test part: A91 " in done.stdout
