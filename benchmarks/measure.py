"""Time two functions against each other on a machine that other programs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

Slice = Callable[[], float]
"""Does some work and returns the seconds per unit of work."""

KeepGoing = Callable[[int], bool]
"""Returns whether to measure another pair, given the number of completed pairs."""


@dataclass(frozen=True)
class Ratio:
    """The time of fedsys over the time of the reference, from pairs of neighbouring slices.

    A ratio without a limit is only reported. With unit "bytes" it compares memory, measured once.
    """

    name: str
    limit: float | None
    fedsys: list[float]
    reference: list[float]
    unit: str = "seconds"

    @property
    def value(self) -> float:
        """The ratio of the medians."""
        return median(self.fedsys) / median(self.reference)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the ratios of the pairs."""
        pairs = [a / b for a, b in zip(self.fedsys, self.reference, strict=True)]
        low, _, high = quantiles(pairs * 2, n=4) if len(pairs) == 1 else quantiles(pairs, n=4)
        return low, high

    @property
    def holds(self) -> bool:
        """Whether the ratio is within its limit."""
        return self.limit is None or self.value <= self.limit

    def as_dict(self) -> dict[str, Any]:
        """Return all values for the results file."""
        found = {"ratio": self.value, "spread": self.spread, "holds": self.holds}
        return {**found, **asdict(self)}


def repeat(
    work: Callable[[], object], times: int, clock: Callable[[], float] = perf_counter
) -> Slice:
    """Return a slice of several calls that reports the seconds per call."""

    def run() -> float:
        started = clock()
        for _ in range(times):
            work()
        return (clock() - started) / times

    return run


def lasting(seconds: float, at_least: int) -> KeepGoing:
    """Keep going for some seconds from now, and for a minimum number of pairs."""
    end = perf_counter() + seconds
    return lambda pairs: pairs < at_least or perf_counter() < end


def interleave(
    fedsys: Slice, reference: Slice, keep_going: KeepGoing
) -> tuple[list[float], list[float]]:
    """Measure pairs of slices in alternating order, so that neither side always comes second."""
    ours: list[float] = []
    theirs: list[float] = []
    while keep_going(len(ours)):
        if len(ours) % 2:
            ours.append(fedsys())
            theirs.append(reference())
        else:
            theirs.append(reference())
            ours.append(fedsys())
    return ours, theirs


def warm_up(fedsys: Slice, reference: Slice) -> None:
    """Run both slices three times, because first calls allocate, compile and connect."""
    interleave(fedsys, reference, lambda pairs: pairs < 3)


def peak_memory() -> float:
    """Return the peak resident memory of this process in bytes.

    getrusage is no alternative: its value starts at that of the parent process.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024.0
