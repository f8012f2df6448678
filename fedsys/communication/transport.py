"""The wire below every communicator: torch.distributed, or its twin for a single process.

Callers never ask which of the two they have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from fedsys.errors import LostRankError


class Transport(Protocol):
    """Collectives over all ranks; rank 0 is the server."""

    rank: int
    size: int
    waits: bool
    """Whether a collective is under way, asked by another thread."""

    def all_reduce(self, buffer: Tensor) -> None:
        """Replace the buffer by its sum over the ranks, in place."""

    def reduce(self, buffer: Tensor) -> None:
        """Sum the buffer over the ranks at the server; elsewhere its content is void."""

    def broadcast(self, buffer: Tensor) -> None:
        """Replace the buffer by the server's, in place."""

    def broadcast_int(self, value: int) -> int:
        """The server's number."""

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        """The rows of every rank, in the order of ranks; all of the same shape."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """A small picklable value of every rank; for set-up and errors, not for the hot path."""

    def close(self) -> None:
        """Let go of the wire."""


class LocalTransport:
    """A single process: every sum has one term."""

    rank = 0
    size = 1
    waits = False

    def all_reduce(self, buffer: Tensor) -> None:
        """The sum of one buffer is itself."""

    reduce = broadcast = all_reduce

    def broadcast_int(self, value: int) -> int:
        """The number itself."""
        return value

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        """All rows there are."""
        return [rows]

    def all_gather_object(self, value: Any) -> list[Any]:
        """All values there are."""
        return [value]

    def close(self) -> None:
        """Nothing to let go of."""


class DistributedTransport:
    """The default process group of torch.distributed.

    The process group is called directly: the module-level functions of torch.distributed add a
    tenth of a small all-reduce in argument checks and logging.
    """

    def __init__(self) -> None:
        group = dist.group.WORLD
        assert group is not None, "the process group must be initialised first"
        self._group = group
        self.rank, self.size = group.rank(), group.size()
        self._sum = dist.AllreduceOptions()
        self._reduce = dist.ReduceOptions()
        self._broadcast = dist.BroadcastOptions()
        self._gathers_on_cpu = dist.get_backend() == "gloo"
        self.waits = False

    def all_reduce(self, buffer: Tensor) -> None:
        """One all_reduce."""
        self._finish(self._group.allreduce, [buffer], self._sum)

    def reduce(self, buffer: Tensor) -> None:
        """One reduce to rank 0."""
        self._finish(self._group.reduce, [buffer], self._reduce)

    def broadcast(self, buffer: Tensor) -> None:
        """One broadcast from rank 0."""
        self._finish(self._group.broadcast, [buffer], self._broadcast)

    def broadcast_int(self, value: int) -> int:
        """One broadcast of 8 bytes."""
        message = torch.tensor([value])
        self.broadcast(message)
        return int(message)

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        """One all_gather, through host memory with gloo, which gathers nothing else."""
        rows = rows.contiguous()
        source = rows.cpu() if self._gathers_on_cpu else rows
        parts = [torch.empty_like(source) for _ in range(self.size)]
        self._finish(self._group.allgather, [parts], [source])
        return [part.to(rows.device) for part in parts]

    def all_gather_object(self, value: Any) -> list[Any]:
        """One all_gather_object."""
        values: list[Any] = [None] * self.size
        self.waits = True
        try:
            dist.all_gather_object(values, value)
        except RuntimeError as error:
            raise LostRankError(first_line(error)) from error
        finally:
            self.waits = False
        return values

    def close(self) -> None:
        """Let go of the process group.

        Its threads end with the last reference to it. Those that outlive the interpreter, still
        holding a tensor, would abort the process.
        """
        del self._group

    def _finish(self, collective: Callable[..., dist.Work], *arguments: object) -> None:
        self.waits = True
        try:
            collective(*arguments).wait()
        except RuntimeError as error:
            raise LostRankError(first_line(error)) from error
        finally:
            self.waits = False


def first_line(error: Exception) -> str:
    """What is said of an error of torch's, without the place in its sources, a stack and advice."""
    line = str(error).strip().splitlines()[0]
    return re.sub(r"^\[[^\]]*\] ", "", line).partition(". This is typically")[0]
