"""Time two functions against each other on several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.measure import KeepGoing, Slice, interleave, warm_up


@contextmanager
def started(rank: int, ranks: int, folder: Path) -> Iterator[None]:
    """Join a gloo process group that initialises through a folder, with one thread per rank."""
    torch.set_num_threads(1)
    rendezvous = f"file://{folder / 'rendezvous'}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    yield
    dist.destroy_process_group()


def interleave_on_all_ranks(
    fedsys: Slice, reference: Slice, keep_going: KeepGoing
) -> list[list[float]]:
    """Measure pairs of slices on all ranks; the slowest rank determines the time of a slice."""
    ours, theirs = _synchronised(fedsys), _synchronised(reference)
    warm_up(ours, theirs)
    times = torch.tensor(interleave(ours, theirs, _agreed(keep_going)), dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    found: list[list[float]] = times.tolist()
    return found


def _synchronised(run: Slice) -> Slice:
    """Start a slice after a barrier, so that it does not wait for the end of the previous one."""

    def begin() -> float:
        dist.barrier()
        return run()

    return begin


def _agreed(keep_going: KeepGoing) -> KeepGoing:
    """Follow the decision of rank 0, so that all ranks stop together."""

    def decide(pairs: int) -> bool:
        answer = torch.tensor([int(keep_going(pairs))])
        dist.broadcast(answer, 0)
        return bool(answer)

    return decide
