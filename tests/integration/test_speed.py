"""Nothing has become much slower: a few of the benchmarks, briefly, with generous limits.

`make bench` measures all of them, for as long as their limits need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from benchmarks import fgda, local_step, proxskip
from benchmarks.measure import Ratio

SECONDS = 2.0
MEASURED: dict[str, tuple[Callable[[], Iterator[Ratio]], float]] = {
    "a dense network's step": (lambda: local_step.measure(local_step.CASES[:1], SECONDS), 1.3),
    "FGDA's step": (lambda: fgda.measure(SECONDS), 2.8),
    "ProxSkip": (lambda: proxskip.measure(SECONDS), 3.0),
}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", MEASURED)
def test_a_ratio_stays_far_below_what_would_be_a_regression(name: str) -> None:
    measure, limit = MEASURED[name]
    for ratio in measure():
        assert ratio.value <= limit
