"""California Housing: 20,640 block groups of the 1990 census (Pace and Barry, 1997)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsys.errors import InputError


def california_housing(
    rows: int, root: str | None = None, download: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The first rows: 8 features as scikit-learn defines them, and values in 100,000 dollars.

    Args:
        rows: how many.
        root: folder that holds cal_housing/cal_housing.data.
        download: whether scikit-learn may fetch its own copy (into root) if that file is missing.
            Let one process do this before several start.
    """
    path = Path(root or "") / "cal_housing" / "cal_housing.data"
    if root is not None and path.is_file():
        features, target = _read(path, rows)
    elif download:
        features, target = _fetch(root)
    else:
        raise InputError(
            f"california housing: {path} is missing; set FEDSYS_DATA (or problem.root) to the "
            "folder with cal_housing/cal_housing.data, or use problem.download=true"
        )
    if len(target) < rows:
        raise InputError(f"california housing: rows must be at most {len(target)}, got {rows}")
    return features[:rows], target[:rows]


def _read(path: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The original file, with rooms, bedrooms and people counted per household."""
    table = np.loadtxt(path, delimiter=",", max_rows=rows, ndmin=2)
    longitude, latitude, age, rooms, bedrooms, people, households, income, value = table.T
    features = [
        income,
        age,
        rooms / households,
        bedrooms / households,
        people,
        people / households,
        latitude,
        longitude,
    ]
    return np.stack(features, axis=1), value / 100_000


def _fetch(root: str | None) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import fetch_california_housing  # takes a second

    try:
        features, target = fetch_california_housing(data_home=root, return_X_y=True)
    except OSError as error:
        raise InputError(f"california housing: scikit-learn's download failed ({error})") from error
    return np.asarray(features), np.asarray(target)
