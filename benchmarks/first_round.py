"""Time from process start to the end of the first round of W1, and peak memory of its two ranks.

`python -m benchmarks.first_round fedsys|loop RANK FOLDER` runs one rank. Neither side imports
modules that only the other side needs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import torch

from benchmarks import reference
from benchmarks.measure import Ratio, interleave, peak_memory
from benchmarks.ranks import started

RANKS, PAIRS, LIMIT = 2, 4, 1.0
CLIENTS, SAMPLES, WIDTHS, BATCH, LOCAL_STEPS, LR = 100, 200, (784, 200, 200, 10), 32, 10, 0.01


def measure() -> Iterator[Ratio]:
    """Yield the ratio of wall-clock times, and that of the bytes of both ranks together."""
    peaks: dict[str, list[float]] = {"fedsys": [], "loop": []}

    def run(side: str) -> Callable[[], float]:
        def launch() -> float:
            start = perf_counter()
            peaks[side].append(_launch(side))
            return perf_counter() - start

        return launch

    times = interleave(run("fedsys"), run("loop"), lambda pairs: pairs < PAIRS)
    yield Ratio("W1, to the end of its first round", LIMIT, *times)
    ours, theirs = peaks.values()
    yield Ratio("W1, peak memory", LIMIT, ours, theirs, unit="bytes")


def _launch(side: str) -> float:
    """Run all ranks and return the sum of their peak memories in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.first_round", side]
        ranks = [subprocess.Popen([*command, str(rank), folder]) for rank in range(RANKS)]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise RuntimeError(f"a rank of {side} failed")
        return sum(float((Path(folder) / f"{rank}").read_text()) for rank in range(RANKS))


def _rank(side: str, rank: int, folder: Path) -> None:
    with started(rank, RANKS, folder), torch.set_grad_enabled(side == "loop"):
        one_round = _loop() if side == "loop" else _fedsys(rank)
        one_round()
    (folder / f"{rank}").write_text(str(peak_memory()))


def _loop() -> Callable[[], None]:
    """Return the round of the loop; like fedsys, a rank draws all samples and keeps its own."""
    hosted = CLIENTS // RANKS
    inputs = torch.randn(CLIENTS, SAMPLES, WIDTHS[0])[:hosted].clone()
    labels = torch.randint(WIDTHS[-1], (hosted, SAMPLES))
    models = [reference.dense(*WIDTHS) for _ in range(hosted)]
    loss = reference.loss_of(WIDTHS[-1])
    return reference.federated_round(models, loss, inputs, labels, BATCH, LOCAL_STEPS, LR)


def _fedsys(rank: int) -> Callable[[], None]:
    from benchmarks.hosted_clients import CASES, fedsys_round

    return fedsys_round(CASES[0], rank)


if __name__ == "__main__":
    _rank(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
