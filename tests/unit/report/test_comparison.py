"""Algorithms side by side over seeds."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from support.processes import Ranks

import fedsys
from fedsys.algorithms import EG, GDA, LSGD, AdaFGDA, FedAvg, ProxSkip
from fedsys.core.errors import InputError, NonFiniteError
from fedsys.problems import HeterogeneousToy, MinimisationProblem, QuadraticGame
from fedsys.report.main import report
from fedsys.training import curves

TOY = HeterogeneousToy(dim=3, heterogeneity="high")
TWO: Any = {"local SGD": LSGD(lr=0.1, local_steps=5), "skip": ProxSkip(lr=0.1)}
GIVEN: dict[str, Any] = {"rounds": 4, "clients": 3, "dtype": "float64"}


@pytest.fixture(scope="module")
def found() -> fedsys.Comparison:
    return fedsys.compare(TOY, TWO, **GIVEN)


def test_a_comparison_has_the_numbers_of_separate_runs(found: fedsys.Comparison) -> None:
    assert [(one.name, one.seed) for one in found.runs] == [(n, s) for n in TWO for s in range(3)]
    for one in found.runs:
        alone = fedsys.run(TOY, TWO[one.name], seed=one.seed, **GIVEN)
        values = [record["relative_error"] for record in alone.records]
        assert [r["relative_error"] for r in one.records] == pytest.approx(values, rel=1e-9)


def test_a_comparison_prints_mean_and_deviation(found: fedsys.Comparison) -> None:
    lines = repr(found).splitlines()
    title = "relative_error after 4 rounds, mean ± standard deviation of 3 seeds"
    assert lines[0] == f"HeterogeneousToy: {title}"
    for line, name in zip(lines[1:], TWO, strict=True):
        ends = [one.final["relative_error"] for one in found.runs if one.name == name]
        assert line == f"{name:9}  {mean(ends):.4g} ± {stdev(ends):.2g}"


def test_a_frame_has_a_row_for_every_record_of_every_run(found: fedsys.Comparison) -> None:
    frame = found.frame()
    assert len(frame) == 2 * 3 * 5
    assert frame["algorithm"].unique().tolist() == ["local SGD", "skip"]
    assert frame["seed"].unique().tolist() == [0, 1, 2]


def test_a_plot_draws_a_mean_line_and_a_band_for_each_algorithm(found: fedsys.Comparison) -> None:
    (panel,) = found.plot().axes
    assert [line.get_label() for line in panel.lines] == ["local SGD", "skip"]
    assert len(panel.collections) == 2
    ends = [one.final["relative_error"] for one in found.runs if one.name == "skip"]
    assert panel.lines[1].get_ydata()[-1] == pytest.approx(mean(ends))
    assert panel.get_ylabel() == "relative_error"
    assert found.plot("gap", ax=panel) is panel.figure
    with pytest.raises(InputError, match="metric must be one of relative_error"):
        found.plot("accuracy")


def test_one_seed_has_no_deviation_and_no_band() -> None:
    one = fedsys.compare(TOY, LSGD(lr=0.1), seeds=[7], **GIVEN)
    assert "mean ± standard deviation of 1 seed\nLSGD  " in repr(one)
    assert repr(one).count("±") == 1
    assert len(one.plot().axes[0].collections) == 0


def test_runs_with_directories_are_reported_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "plot", lambda *given: None)  # to save time
    first = fedsys.compare(TOY, TWO, seeds=[0, 1], run_dir=tmp_path / "runs", **GIVEN)
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == ["local-SGD-seed-0", "local-SGD-seed-1", "skip-seed-0", "skip-seed-1"]
    page = report([tmp_path / "runs"], tmp_path / "report", figures=False)[0].read_text()
    assert "4 runs of 2 configurations" in page
    steps: list[int] = []
    again = fedsys.compare(
        TOY,
        TWO,
        seeds=[0, 1, 2],
        run_dir=tmp_path / "runs",
        on_step=lambda step, state: steps.append(step),
        **GIVEN,
    )
    assert steps.count(1) == 2  # of seed 2 only
    assert [one.records for one in again.runs if one.seed < 2] == [o.records for o in first.runs]


def _compared() -> str:
    return repr(fedsys.compare(TOY, TWO, **GIVEN))


def test_several_ranks_compare_together(ranks: Ranks, found: fedsys.Comparison) -> None:
    assert ranks(2, _compared) == 2 * [repr(found)]


@pytest.mark.parametrize("alone", [False, True])
def test_a_run_that_diverges_is_counted_and_leaves_the_others(alone: bool) -> None:
    problem = QuadraticGame(dim=2)
    options: dict[str, Any] = {"on_step": lambda step, state: None} if alone else {}
    found = fedsys.compare(
        problem,
        {"wild": GDA(lr=1e30), "calm": EG(lr=1e-3)},
        seeds=[0, 1],
        rounds=20,
        clients=2,
        **options,
    )
    errors = [type(one.error) for one in found.runs]
    assert errors == [NonFiniteError, NonFiniteError, type(None), type(None)]
    assert repr(found).splitlines()[1] == "wild  -  (2 of 2 failed)"
    assert found.best().name == "calm"
    found.plot()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": 1}, "compare has no option seed; give seeds="),
        ({"lr": 0.1}, "compare has no option lr; options are checkpoint_every, "),
        ({"seeds": []}, "compare: no runs"),
        ({"seeds": [1, 2, 1]}, "compare: seeds must differ, got 1 twice"),
        ({"algorithms": []}, "compare: no runs"),
        ({"algorithms": [LSGD]}, "is not an algorithm"),
        ({"rounds": None}, "give steps or rounds"),
        ({"algorithms": [LSGD(), FedAvg()]}, "FedAvg needs a minimisation problem"),
        ({"algorithms": [LSGD(), FedAvg()], "progress": False}, "FedAvg needs a minimisation"),
    ],
)
def test_an_invalid_comparison_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fedsys.compare(**{"problem": TOY, "algorithms": TWO, **GIVEN, **given})


def test_algorithms_that_are_not_stacked_are_compared_too() -> None:
    problem = MinimisationProblem(lambda x, m: (x - m).square().sum(), [0.0])
    found = fedsys.compare(problem, [FedAvg(lr=0.1), FedAvg(lr=0.2)], **GIVEN)
    assert [one.label for one in found.settings] == ["FedAvg 1", "FedAvg 2"]
    games = fedsys.compare(QuadraticGame(dim=2), AdaFGDA(), seeds=[0], **GIVEN)
    assert len(games.runs) == 1
