"""The result of a run: its line, its table and its figure."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

import fedsys
from fedsys.algorithms import LSGD
from fedsys.core.errors import InputError
from fedsys.core.metrics import metric
from fedsys.problems import TwoPoints


@pytest.fixture(scope="module")
def result() -> fedsys.Result:
    algorithm = LSGD(lr=0.5, local_steps=2)
    return fedsys.run(TwoPoints(delta=4.0), algorithm, rounds=4, clients=2, dtype="float64")


def test_a_result_says_in_one_line_what_was_run(result: fedsys.Result) -> None:
    last = result.records[-1]
    assert repr(result) == (
        "<Result of LSGD on TwoPoints: 4 rounds (8 steps), "
        f"relative_error {last['relative_error']:.4g}, gap {last['gap']:.4g}, "
        f"operator_norm {last['operator_norm']:.4g}>"
    )
    assert repr(replace(result, warnings=["a"])).endswith("; 1 warning>")
    assert repr(replace(result, warnings=["a", "b"])).endswith("; 2 warnings>")
    plain = replace(result, records=[{"step": 1, "round": 1, "mine": 2.0}])
    assert repr(plain) == "<Result of LSGD on TwoPoints: 1 round (1 step), mine 2>"
    assert "no metrics" in repr(replace(result, records=[]))


def test_a_frame_has_a_row_for_every_record(result: fedsys.Result) -> None:
    frame = result.frame()
    assert frame["round"].tolist() == [0, 1, 2, 3, 4]
    assert frame["relative_error"].tolist() == [r["relative_error"] for r in result.records]


def test_a_frame_without_pandas_says_what_to_install(
    result: fedsys.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"needs pandas: pip install fedsys\[pandas\]; or read"):
        result.frame()


def test_a_plot_draws_the_headline_metric_against_rounds(result: fedsys.Result) -> None:
    figure = result.plot()
    assert isinstance(figure, Figure)
    (panel,) = figure.axes
    (line,) = panel.lines
    assert list(line.get_xdata()) == [0, 1, 2, 3, 4]
    assert list(line.get_ydata()) == [r["relative_error"] for r in result.records]
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("communication round", "relative_error")
    assert panel.get_title() == metric("relative_error").meaning


def test_a_plot_has_the_axis_of_its_metric(result: fedsys.Result) -> None:
    falling = [{"step": n, "round": n, "gap": 10.0**-n, "test_auc": 0.5**n} for n in range(5)]
    made = replace(result, records=falling)
    assert made.plot("gap").axes[0].get_yscale() == "log"
    assert made.plot("test_auc").axes[0].get_yscale() == "linear"


def test_a_plot_draws_into_given_axes(result: fedsys.Result) -> None:
    panel = Figure().subplots()
    assert result.plot("gap", ax=panel) is panel.figure
    assert len(panel.lines) == 1


def test_a_plot_of_an_unknown_metric_names_the_known_ones(result: fedsys.Result) -> None:
    with pytest.raises(
        InputError, match=r"metric must be one of relative_error, gap, .*; got 'ga'"
    ):
        result.plot("ga")
