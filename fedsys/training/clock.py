"""The seconds that a run spends in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class TrainingClock:
    """Measures training time; evaluation and checkpoints do not count.

    Attributes:
        seconds: the training time up to the last pause. A resumed run sets it to that of its
            checkpoint.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def start(self) -> None:
        """Start to measure."""
        self._started = perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock while the body runs; an exception leaves it stopped."""
        self.seconds += perf_counter() - self._started
        yield
        self._started = perf_counter()
