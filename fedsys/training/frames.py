"""Records as a table of pandas, which is optional."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedsys.core.errors import InputError


def frame(rows: Iterable[Mapping[str, Any]], instead: str) -> Any:
    """Return rows as a pandas DataFrame.

    Args:
        rows: the values of each row by column.
        instead: what has the same numbers without pandas, for the error.
    """
    try:
        import pandas as pd
    except ImportError:
        raise InputError(
            f"frame() needs pandas: pip install fedsys[pandas]; or read {instead}"
        ) from None
    return pd.DataFrame([dict(row) for row in rows])
