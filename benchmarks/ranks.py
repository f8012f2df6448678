"""Timing two things against each other on several ranks at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.measure import GoesOn, Slice, interleave, warm_up


@contextmanager
def started(rank: int, ranks: int, folder: Path) -> Iterator[None]:
    """One of several processes, with a thread of its own, that meet in a folder."""
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    yield
    dist.destroy_process_group()


def interleave_together(fedsys: Slice, reference: Slice, goes_on: GoesOn) -> list[list[float]]:
    """Pairs of slices on all ranks; a slice has ended when it has ended everywhere."""
    ours, theirs = _together(fedsys), _together(reference)
    warm_up(ours, theirs)
    times = torch.tensor(interleave(ours, theirs, _agreed(goes_on)), dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    found: list[list[float]] = times.tolist()
    return found


def _together(run: Slice) -> Slice:
    """Begin on all ranks at once, so that no slice pays for the end of the one before."""

    def begin() -> float:
        dist.barrier()
        return run()

    return begin


def _agreed(goes_on: GoesOn) -> GoesOn:
    """What the first rank says, lest one stops alone."""

    def ask(pairs: int) -> bool:
        answer = torch.tensor([int(goes_on(pairs))])
        dist.broadcast(answer, 0)
        return bool(answer)

    return ask
