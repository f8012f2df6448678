"""The picture of a run, of one that all but diverged too."""

from __future__ import annotations

from math import inf, isnan, nan
from pathlib import Path

import pytest

from fedsys.runtime.curves import drawable, plot


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("end", [1e-3, 1e250, 1.7e308, inf, nan])
def test_whatever_the_last_value_is_there_is_a_picture(tmp_path: Path, end: float) -> None:
    errors = [1.0, 1e200, end]
    records = [{"round": i, "relative_error": e} for i, e in enumerate(errors)]
    plot(records, tmp_path / "curves.png", "a run")
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_what_is_beyond_drawing_is_left_out() -> None:
    first, *others = drawable([1e99, 1e101, -1e101, inf, nan])
    assert first == 1e99
    assert all(map(isnan, others))
