"""The picture of a run, of one that all but diverged too."""

from __future__ import annotations

from math import inf, isnan, nan
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedsys.training.curves import drawable, plot


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("end", [1e-3, 1e250, 1.7e308, inf, nan])
def test_a_figure_is_drawn_for_any_last_value(tmp_path: Path, end: float) -> None:
    errors = [1.0, 1e200, end]
    records = [{"round": i, "relative_error": e} for i, e in enumerate(errors)]
    plot(records, tmp_path / "curves.png", "a run")
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_values_too_large_to_draw_are_left_out() -> None:
    first, *others = drawable([1e99, 1e101, -1e101, inf, nan])
    assert first == 1e99
    assert all(map(isnan, others))


def test_every_panel_has_a_label_on_both_axes_also_for_a_name_that_looks_like_a_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    names = ("gap", r"$\frac{", "_hidden")
    records = [{"round": i, **dict.fromkeys(names, 1.0)} for i in range(3)]
    plot(records, tmp_path / "curves.png", r"$\nonsense$")
    (figure,) = drawn
    figure.canvas.draw()
    assert {panel.get_ylabel().replace("\\$", "$").strip() for panel in figure.axes} == set(names)
    assert {panel.get_xlabel() for panel in figure.axes} == {"communication round"}
