"""When a run ends before its planned length, and which of its records is kept."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from fedsys.core.errors import require
from fedsys.core.fields import Checked

KEEP = ("last", "best")


@dataclass(frozen=True)
class EarlyStopping(Checked):
    """Ends a run after several records without improvement of a metric.

    The record before the first step is the first value. A record improves if its value is better
    than that of the last improvement by more than `min_delta`; whether lower or higher is better is
    a property of the metric.

    Args:
        metric: the metric; None for the headline metric of the records. `keep="best"` uses it too.
        patience: the run ends with this many consecutive records without improvement; None for
            never.
        min_delta: the smallest difference, exclusive, that counts as an improvement.
    """

    metric: str | None = None
    patience: int | None = None
    min_delta: float = 0.0

    name: ClassVar[str] = "early_stopping"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience is not None:
            rule = "at least 1 record, or null for no early stopping"
            require(self.patience >= 1, self.name, "patience", self.patience, rule)
        valid = self.min_delta >= 0 and isfinite(self.min_delta)
        require(valid, self.name, "min_delta", self.min_delta, "not negative")
