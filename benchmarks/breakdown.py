"""Where the time of a step goes, in the default run: AdaFGDA on AUC, one client per rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any, TypeVar

import torch

from benchmarks.measure import Ratio
from fedsys.algorithms import AdaFGDA
from fedsys.communication import AdaptiveMatrix, LocalTransport, Sync
from fedsys.problems import DeepAUC, Site

STEPS, WARM_UP = 2_000, 100
PARTS = ("forward", "backward", "draw", "sync", "update", "bookkeeping")

Result = TypeVar("Result")


class Stopwatch:
    """The seconds spent in parts of a step; what is inside another part counts once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = 0.0

    def __call__(self, part: str, work: Callable[..., Result]) -> Callable[..., Result]:
        """The same function, timed."""

        def timed(*args: Any) -> Result:
            outer, self._inside = self._inside, 0.0
            started = process_time()
            result = work(*args)
            taken = process_time() - started
            self.seconds[part] += taken - self._inside
            self._inside = outer + taken
            return result

        return timed


def measure() -> Iterator[Ratio]:
    """The share of each part; timing itself adds some microseconds to every one of them."""
    torch.set_num_threads(1)
    watch, oracle = Stopwatch(), DeepAUC().oracle(Site())
    algorithm, communicator = AdaFGDA(lr_x=0.3, lr_y=0.3, local_steps=10), AdaptiveMatrix()
    communicator.open(LocalTransport(), oracle.site.placement, algorithm.schedule)
    watched: Any = oracle
    network = watched._at_once._dense  # the default network is differentiated by hand
    network.scores = watch("forward", network.scores)
    watched._gradients = watch("backward", oracle._gradients)
    watched.data = _Watched(
        oracle.data, batches=_Watched(oracle.data.batches, at=watch("draw", oracle.data.batches.at))
    )
    wire: Any = communicator
    wire.mean, wire.server = (watch("sync", verb) for verb in (wire.mean, wire.server))
    with torch.no_grad():
        state = algorithm.init(oracle.at_start(), communicator.at_start())

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
    """An object with some of its attributes replaced."""

    def __init__(self, what: object, **replaced: object) -> None:
        self._what = what
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._what, name)
