"""Group-fair learning: rates by hand, tables, and what happens to data that does not fit."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import FAIR, GroupedClouds
from test_readme import run

import fedsys
from fedsys.algorithms import FCFL, FedAvg, FedBiO, FedMinMax
from fedsys.communication import Placement
from fedsys.data import Adult, Digits, German, GroupedDataset
from fedsys.errors import InputError
from fedsys.problems import GroupFair, Site
from fedsys.problems.fairness import confusion, group_table, soft_disparity, unfairness

SITE = Site(Placement(3), dtype=torch.float64, kind="bilevel")
REAL = Path(os.environ.get("FEDSYS_DATA", "nowhere"))

# Group 0 has 2 of 2 positives right and 1 of 4 negatives wrong; group 1 has 1 of 4 positives right
# and no negative.
SCORES = torch.tensor([[1.0, 2, 1, -1, -1, -1, 3, -1, -2, -1]])
LABELS = torch.tensor([[1, 1, 0, 0, 0, 0, 1, 1, 1, 1]])
GROUPS = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1, 1, 1]])
ALL = torch.ones(1, 10, dtype=torch.bool)


class TestRates:
    def test_by_hand(self) -> None:
        counts = confusion(SCORES, LABELS, GROUPS, 3, ALL)[0]
        assert counts.tolist() == [[[3, 1], [0, 2]], [[0, 0], [3, 1]], [[0, 0], [0, 0]]]
        assert unfairness(counts) == {"accuracy": 0.6, "eqopp": 0.75, "eqodds": 0.75}

    def test_equalised_odds_look_at_false_positives_too(self) -> None:
        counts = torch.tensor([[[1.0, 3], [1, 1]], [[4, 0], [0, 2]]], dtype=torch.float64)
        assert unfairness(counts) == {"accuracy": 8 / 12, "eqopp": 0.5, "eqodds": 0.75}

    def test_what_only_fills_up_a_row_does_not_count(self) -> None:
        valid = ALL.clone()
        valid[0, 6:] = False
        assert confusion(SCORES, LABELS, GROUPS, 2, valid)[0, 1].sum() == 0

    def test_a_rate_of_nobody_is_null_in_the_table(self) -> None:
        table = group_table(confusion(SCORES, LABELS, GROUPS, 2, ALL)[0], ("a", "b"))
        assert table["b"] == {
            "rows": 4,
            "positives": 4,
            "accuracy": 0.25,
            "true_positive_rate": 0.25,
            "false_positive_rate": None,
        }


class TestTheSoftDisparity:
    def test_is_the_difference_of_sharp_scores(self) -> None:
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
    """A table like German Credit: statuses A91, A92, A93 in turn, every third a bad risk."""
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
    def test_german_codes_become_their_last_digit_and_columns_lose_their_magnitude(
        self, tmp_path: Path
    ) -> None:
        data = German(root=str(credit(tmp_path))).load()
        assert data.train_inputs.shape == (42, 20)
        assert data.test_inputs.shape == (18, 20)
        assert data.group_names == ("A91", "A92", "A93")
        assert torch.bincount(data.train_groups).tolist() == [14, 14, 14]
        assert data.train_inputs[:, 3].unique().tolist() == [0]  # A410
        assert data.train_inputs[:, 4].unique().tolist() == [1]  # 1000 by 1000
        assert float(data.train_inputs[:, 12].max()) <= 7.9  # ages by 10
        assert data.description["groups"]["A91"]["train"]["rows"] == 14
        assert data.description["features"]["amount"] == {"shift": 0.0, "scale": 1000.0}

    def test_standard_scaling_centres_the_training_part(self, tmp_path: Path) -> None:
        data = German(
            root=str(credit(tmp_path)), scaling="standard", group_in_features=False
        ).load()
        assert data.train_inputs.shape == (42, 19)
        ages = data.train_inputs[:, 11]
        assert float(ages.mean()) == pytest.approx(0, abs=1e-6)
        assert float(ages.std(correction=0)) == pytest.approx(1, abs=1e-6)

    def test_another_seed_makes_another_test_part(self, tmp_path: Path) -> None:
        table = German(root=str(credit(tmp_path)))
        first, again, other = (replace(table, seed=s).load() for s in (0, 0, 1))
        assert torch.equal(first.test_inputs, again.test_inputs)
        assert not torch.equal(first.test_inputs, other.test_inputs)

    def test_a_label_column_with_one_class_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"column risk of .* has one class only \(0, in all"):
            German(root=str(credit(tmp_path, label="1"))).load()

    def test_a_missing_file_is_named_with_what_to_do(self, tmp_path: Path) -> None:
        wanted = r"does not hold adult.data .*set FEDSYS_DATA .*download"
        with pytest.raises(InputError, match=wanted):
            Adult(root=str(tmp_path)).load()

    def test_a_file_of_another_form_is_refused(self, tmp_path: Path) -> None:
        folder = credit(tmp_path)
        (folder / "german" / "german.data").write_text("A11 6 A34\n")
        with pytest.raises(InputError, match=r"row 1 of .* has 3 fields, not 21"):
            German(root=str(folder)).load()

    @pytest.mark.skipif(not (REAL / "adult").is_dir(), reason="needs FEDSYS_DATA")
    def test_the_real_adult_has_the_counts_of_the_paper(self) -> None:
        data = Adult(root=str(REAL)).load()
        assert data.train_inputs.shape[1] == 107
        groups = data.description["groups"]
        rows = {n: sum(g[p]["rows"] for p in ("train", "test")) for n, g in groups.items()}
        assert rows == {
            "White": 27816,
            "Black": 3124,
            "Asian-Pac-Islander": 1039,
            "Amer-Indian-Eskimo": 311,
            "Other": 271,
        }


@dataclass(frozen=True)
class ByHand:
    """Clients get the samples with these numbers."""

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
    return GroupFair(TwoGroups(), partition=ByHand(parts), batch_size=None)


class TestValidation:
    def test_takes_samples_of_every_group_from_each_client(self) -> None:
        oracle = FAIR.oracle(SITE)
        held = oracle.validation.whole
        assert held.tags.shape == (3, 6)
        assert [torch.bincount(row).tolist() for row in held.tags] == [[2, 2, 2]] * 3
        assert sum(oracle.train.sizes) + 18 == 210

    def test_of_labels_takes_the_same_number_of_both(self) -> None:
        held = replace(FAIR, validation="labels").oracle(SITE).validation.whole
        for labels, groups in zip(held.labels, held.tags, strict=True):
            assert torch.bincount(2 * groups + labels).tolist() == [2] * 6

    def test_of_positives_has_no_other_label(self) -> None:
        oracle = replace(FAIR, validation="positives").oracle(SITE)
        assert float(oracle.validation.whole.labels.min()) == 1

    def test_takes_no_more_than_half_of_a_group_and_weights_groups_alike(self) -> None:
        oracle = two_groups((0, 1, 2, 3, 9, 10), (4, 5, 6, 7, 8, 11)).oracle(
            replace(SITE, placement=Placement(2))
        )
        counts = oracle.describe()["validation"]
        assert [{n: c["rows"] for n, c in row.items()} for row in counts] == [
            {"many": 2, "few": 1},
            {"many": 2, "few": 0},  # one sample of the few stays for training
        ]
        masses = oracle.validation.whole.mass
        assert masses.tolist() == [[0.25, 0.25, 0.5], [0.5, 0.5, 0]]

    def test_without_members_of_a_group_the_client_validates_the_others(self) -> None:
        problem = two_groups((0, 1, 2, 3), (4, 5, 6, 7, 8, 9, 10, 11))
        result = fedsys.run(problem, FedBiO(local_steps=1), steps=3, clients=2)
        assert result.report is not None
        assert set(result.report) == {"group_weights", "train", "test"}
        result = fedsys.run(problem, FedMinMax(), steps=3, clients=2)
        assert torch.isfinite(result.variables["0.weight"]).all()
        result = fedsys.run(problem, FCFL(first_stage=2), steps=3, clients=2)
        assert torch.isfinite(result.variables["0.weight"]).all()

    def test_refuses_a_group_that_no_client_can_validate(self) -> None:
        problem = two_groups((0, 1, 2, 9), (3, 4, 5, 10), (6, 7, 8, 11))
        with pytest.raises(InputError, match="no client has two samples of group few"):
            problem.oracle(SITE)

    def test_refuses_a_client_that_can_validate_nothing(self) -> None:
        problem = two_groups((0, 9), (1, 2, 3, 4, 10, 11))
        with pytest.raises(InputError, match="client 0 has no group with two samples"):
            problem.oracle(replace(SITE, placement=Placement(2)))

    def test_refuses_data_without_groups(self) -> None:
        with pytest.raises(InputError, match="Digits has not; use dataset=adult"):
            GroupFair(Digits()).oracle(SITE)


def test_fedminmax_that_never_moves_its_weights_is_fedavg_with_one_local_step() -> None:
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


def test_the_run_directory_says_how_the_data_was_prepared_and_how_groups_fare(
    tmp_path: Path,
) -> None:
    credit(tmp_path)
    arguments = ["problem=fair_german", "algorithm=fair/fedbio", "model=logistic", "clients=3"]
    stages = ["steps=10", "algorithm.fit_from=5", "evaluate_every=10", "run.dir=run"]
    done = run(tmp_path, "-m", "fedsys", *arguments, *stages, f"problem.dataset.root={tmp_path}")
    assert done.returncode == 0, done.stderr
    data, report = (
        json.loads((tmp_path / "run" / name).read_text()) for name in ("data.json", "report.json")
    )
    assert data["groups"]["A93"]["test"]["rows"] == 6
    assert len(data["clients"]) == len(data["validation"]) == 3
    assert len(data["features"]) == 20
    assert sum(report["group_weights"].values()) == pytest.approx(3)
    assert {row["rows"] for row in report["train"].values()} == {14}
