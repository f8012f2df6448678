"""Who was the first to hand in a number that is not finite."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedsys.communication import Sync


def first_non_finite(rows: Tensor) -> int | None:
    """The first row with a NaN or an infinity."""
    bad = ~rows.reshape(len(rows), -1).isfinite().all(1)
    return int(bad.nonzero()[0]) if bool(bad.any()) else None


class WatchedSync(Sync):
    """A sync that looks at what the hosted clients hand in.

    Attributes:
        exchanges: how many there were.
        culprit: the first exchange with a field that is not finite, and the row of its client.
    """

    def __init__(self, sync: Sync) -> None:
        vars(self).update(vars(sync))
        self.exchanges = 0
        self.culprit: tuple[int, int] | None = None

    def __call__(self, *fields: Any) -> Any:
        """The means, after a look."""
        self._look(fields)
        return super().__call__(*fields)

    def server(self, function: Any, *fields: Tensor) -> tuple[Tensor, ...]:
        """The server's result, after a look."""
        self._look(fields)
        return super().server(function, *fields)

    def gather(self, values: Tensor) -> Tensor:
        """The values, after a look."""
        self._look((values,))
        return super().gather(values)

    def _look(self, fields: tuple[Tensor, ...]) -> None:
        rows = [row for row in map(first_non_finite, fields) if row is not None]
        if self.culprit is None and rows:
            self.culprit = self.exchanges, min(rows)
        self.exchanges += 1
