"""The model of a round's cost finds the numbers that its measurements were made with."""

from __future__ import annotations

import pytest

from benchmarks.scaling import Ring, fit


def test_a_ring_of_two_passes_everything_on_twice() -> None:
    assert Ring(latency=1e-3, bandwidth=1e6).seconds(2, 1e6) == pytest.approx(2 * (1e-3 + 0.5))


def test_ranks_take_turns_on_the_cores_that_they_share() -> None:
    ring = Ring(latency=1e-3, bandwidth=1e6)
    assert ring.seconds(8, 1e6, cores=2) == pytest.approx(4 * ring.seconds(8, 1e6))
    assert ring.seconds(2, 1e6, cores=2) == ring.seconds(2, 1e6)


def test_the_fit_finds_latency_and_bandwidth() -> None:
    ring = Ring(latency=5e-5, bandwidth=2e9)
    measured = {
        (ranks, size): ring.seconds(ranks, size, cores=2)
        for ranks in (2, 4, 8)
        for size in (1_000, 1_000_000)
    }
    found = fit(measured, cores=2)
    assert found.latency == pytest.approx(5e-5)
    assert found.bandwidth == pytest.approx(2e9)
