"""California Housing: 20,640 block groups of the 1990 census (Pace and Barry, 1997)."""

from __future__ import annotations

import hashlib
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from fedsys.core.errors import InputError
from fedsys.data.formats import reading
from fedsys.data.storage import cache_folder, extract, make_folder

ADDRESS = "https://ndownloader.figshare.com/files/5976036"
SHA256 = "aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681"
_MOST_BYTES = 10_000_000


def california_housing(
    rows: int, root: str | None = None, download: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The first rows: 8 features as scikit-learn defines them, and values in 100,000 dollars.

    Args:
        rows: how many.
        root: folder that holds cal_housing/cal_housing.data.
        download: whether to fetch the archive that scikit-learn uses if that file is missing, into
            `root`, or else into the cache. Its own copy is a pickle, and is never read.
    """
    home = Path(root) if root is not None else cache_folder() if download else Path()
    path = home / "cal_housing" / "cal_housing.data"
    if download and not path.is_file():
        make_folder(path.parent, _fetch)
    if (root is None and not download) or not path.is_file():
        raise InputError(
            f"california housing: {path} is missing; set FEDSYS_DATA (or problem.root) to the "
            "folder with cal_housing/cal_housing.data, or use problem.download=true"
        )
    features, target = _read(path, rows)
    if len(target) < rows:
        raise InputError(f"california housing: rows must be at most {len(target)}, got {rows}")
    return features[:rows], target[:rows]


def _read(path: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The original file, with rooms, bedrooms and people counted per household."""
    with reading(path):
        if path.stat().st_size == 0:
            raise ValueError("it is empty")
        table = np.loadtxt(path, delimiter=",", max_rows=rows, ndmin=2)
        if table.shape[1] != 9:
            raise ValueError(f"its rows have {table.shape[1]} numbers, not 9")
        wrong = np.flatnonzero(~np.isfinite(table).all(1) | (table[:, 6] <= 0))
        if len(wrong):
            raise ValueError(f"row {wrong[0] + 1} has a number that is not finite, or no household")
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


def _fetch(folder: Path) -> Path:
    archive = folder / "cal_housing.tgz"
    try:
        with urlopen(ADDRESS, timeout=60) as answer:
            content = answer.read(_MOST_BYTES)
    except (OSError, HTTPException) as error:
        raise InputError(f"california housing: the download failed ({error}); try again") from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise InputError(f"california housing: {ADDRESS} does not hold the published file")
    archive.write_bytes(content)
    extract(archive, folder)
    return folder / "CaliforniaHousing"
