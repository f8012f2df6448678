"""Breakdown of a step of the default run: AdaFGDA on deep AUC, one client per rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any, TypeVar

import torch

from benchmarks.measure import Ratio
from fedsys.algorithms import AdaFGDA
from fedsys.communication import AdaptiveMatrix, LocalTransport
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems import DeepAUC

STEPS, WARM_UP = 2_000, 100
PARTS = ("forward", "backward", "draw", "sync", "update", "bookkeeping")

Result = TypeVar("Result")


class Stopwatch:
    """Seconds spent in the parts of a step; a nested part is not counted in the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._nested = 0.0

    def __call__(self, part: str, work: Callable[..., Result]) -> Callable[..., Result]:
        """Return `work`, timed as `part`."""

        def timed(*args: Any) -> Result:
            outer, self._nested = self._nested, 0.0
            started = process_time()
            result = work(*args)
            taken = process_time() - started
            self.seconds[part] += taken - self._nested
            self._nested = outer + taken
            return result

        return timed


def measure() -> Iterator[Ratio]:
    """Yield the share of each part; the timing adds some microseconds to each of them."""
    torch.set_num_threads(1)
    watch, oracle = Stopwatch(), DeepAUC().oracle(Site())
    algorithm, communicator = AdaFGDA(lr_x=0.3, lr_y=0.3, local_steps=10), AdaptiveMatrix()
    communicator.open(LocalTransport(), oracle.site.placement, algorithm.schedule)
    watched: Any = oracle
    network = watched._at_once._dense  # the default network has hand-written derivatives
    network.scores = watch("forward", network.scores)
    watched._gradients = watch("backward", oracle._gradients)
    watched.data = _Watched(
        oracle.data, batches=_Watched(oracle.data.batches, at=watch("draw", oracle.data.batches.at))
    )
    timed: Any = communicator
    timed.mean, timed.server = (watch("sync", verb) for verb in (timed.mean, timed.server))
    with torch.no_grad():
        state = algorithm.init(oracle.initial(), communicator.initial())

        def step(t: int) -> None:
            nonlocal state
            sync: Sync = communicator.at(t)
            state = watch("update", algorithm.step)(state, oracle.at(t), sync)

        for t in range(WARM_UP):
            step(t)
        watch.seconds.clear()
        started = process_time()
        for t in range(WARM_UP, WARM_UP + STEPS):
            step(t)
        total = process_time() - started
    watch.seconds["bookkeeping"] = total - sum(watch.seconds.values())
    for part in PARTS:
        yield Ratio(f"of a step, {part}", None, [watch.seconds[part] / STEPS], [total / STEPS])


class _Watched:
    """A proxy of an object with some attributes replaced."""

    def __init__(self, target: object, **replaced: object) -> None:
        self._target = target
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)
