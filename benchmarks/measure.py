"""Timing two things against each other on a machine that is busy with others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

Slice = Callable[[], float]
"""Does some work and returns the seconds of one unit of it."""

GoesOn = Callable[[int], bool]
"""Whether to measure another pair, asked with the number of those that are done."""


@dataclass(frozen=True)
class Ratio:
    """The time of fedsys over the time of the reference, from pairs of neighbouring slices.

    Without a limit it is only told; in "bytes" it is memory, measured once.
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
        """Whether fedsys keeps to its limit."""
        return self.limit is None or self.value <= self.limit

    def as_dict(self) -> dict[str, Any]:
        """Everything, for the results file."""
        found = {"ratio": self.value, "spread": self.spread, "holds": self.holds}
        return {**found, **asdict(self)}


def repeat(
    work: Callable[[], object], times: int, clock: Callable[[], float] = perf_counter
) -> Slice:
    """A slice of several calls; seconds per call."""

    def run() -> float:
        started = clock()
        for _ in range(times):
            work()
        return (clock() - started) / times

    return run


def lasting(seconds: float, at_least: int) -> GoesOn:
    """For some seconds from now, and for at least some pairs."""
    end = perf_counter() + seconds
    return lambda pairs: pairs < at_least or perf_counter() < end


def interleave(fedsys: Slice, reference: Slice, goes_on: GoesOn) -> tuple[list[float], list[float]]:
    """Pairs of slices, whose order alternates: neither side always comes second."""
    ours: list[float] = []
    theirs: list[float] = []
    while goes_on(len(ours)):
        if len(ours) % 2:
            ours.append(fedsys())
            theirs.append(reference())
        else:
            theirs.append(reference())
            ours.append(fedsys())
    return ours, theirs


def warm_up(fedsys: Slice, reference: Slice) -> None:
    """The first calls allocate, compile and connect."""
    interleave(fedsys, reference, lambda pairs: pairs < 3)


def peak_memory() -> float:
    """The most bytes that this process has had in memory.

    Not by getrusage, which begins with what the process had that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024.0
