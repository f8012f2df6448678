"""The transport between CPU ranks of one host: shared memory carries the values."""

from __future__ import annotations

import mmap
import os
import secrets
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.communication.transport.torch_distributed import DistributedTransport
from fedsys.communication.values import boolean, integer, text

MAX_RANKS = 8
"""Every rank reads the areas of all ranks; with more of them, a ring moves fewer bytes."""
_INITIAL_BYTES, _MAX_BYTES = 2**16, 2**28
_ALIGNMENT = 64


class SharedMemoryTransport(DistributedTransport):
    """Ranks on one host that compute on the CPU; `reaches_all` tells whether they are.

    Each rank has an area of shared memory. A collective writes into the own area, passes a barrier
    (an all-to-all of one byte through gloo), and reads the areas of the others. It takes half the
    time of gloo, which sends all values through sockets. An area has two halves that are used in
    turns: when a rank writes into a half again, it has passed a barrier after all others read it.
    Every rank adds in the order of ranks, so all ranks have the same bits. Buffers that do not fit
    (empty, strided, not on the CPU, larger than 256 MB) go through gloo.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sent = torch.zeros(self.size, dtype=torch.uint8)
        self._received = torch.zeros_like(self._sent)
        self._half = 0
        self._maps: list[mmap.mmap] = []
        self._map_areas(_INITIAL_BYTES)

    @property
    def reaches_all(self) -> bool:
        """Whether every rank sees the memory of every other; all have the same answer."""
        return bool(self._maps)

    @override
    def all_reduce(self, buffer: Tensor) -> None:
        if not self._fits(buffer):
            super().all_reduce(buffer)
            return
        _add_up(self._exchange(buffer), buffer)

    @override
    def reduce(self, buffer: Tensor) -> None:
        if not self._fits(buffer):
            super().reduce(buffer)
            return
        written = self._exchange(buffer)
        if self.rank == 0:
            _add_up(written, buffer)

    @override
    def broadcast(self, buffer: Tensor) -> None:
        if not self._fits(buffer):
            super().broadcast(buffer)
            return
        written = self._exchange(buffer, writes=self.rank == 0)
        if self.rank != 0:
            buffer.copy_(written[0])

    @override
    def close(self) -> None:
        super().close()
        self._areas.clear()
        self._maps.clear()

    def _fits(self, buffer: Tensor) -> bool:
        """Return whether the areas take `buffer`, enlarging them if needed; the same on all ranks.

        All ranks have buffers of the same shape, so they enlarge their areas together.
        """
        size = buffer.nbytes
        if buffer.device.type != "cpu" or not buffer.is_contiguous() or not 0 < size <= _MAX_BYTES:
            return False
        if size > self._capacity and self._maps:
            self._map_areas(size)
        return bool(self._maps)

    def _exchange(self, buffer: Tensor, writes: bool = True) -> list[Tensor]:
        """Return what the ranks wrote, as tensors like `buffer`."""
        size = buffer.nbytes
        self._half ^= 1
        first = self._half * self._capacity
        written = [area[first : first + size].view(buffer.dtype) for area in self._areas]
        if writes:
            written[self.rank].copy_(buffer.view(-1))
        self._barrier()
        return [rows.view(buffer.shape) for rows in written]

    def _barrier(self) -> None:
        self._finish(self._group.alltoall_base, self._received, self._sent, [], [])

    def _map_areas(self, size: int) -> None:
        """Create this rank's area, and open those of the others through /proc."""
        self._capacity = -(-size // _ALIGNMENT) * _ALIGNMENT
        descriptor = os.memfd_create("fedsys")
        os.ftruncate(descriptor, 2 * self._capacity)
        # Another container may have a process of the same number; the password tells them apart.
        password = secrets.token_hex(16)
        os.pwrite(descriptor, password.encode(), 0)
        found = self.all_gather_values((os.getpid(), descriptor, password), _parse_area)
        try:
            self._maps = [
                _open(process, number, word, 2 * self._capacity) for process, number, word in found
            ]
        except OSError:
            self._maps = []
        if not all(self.all_gather_values(bool(self._maps), boolean)):
            self._maps = []
        os.close(descriptor)
        self._areas = [torch.frombuffer(memory, dtype=torch.uint8) for memory in self._maps]


def _parse_area(value: Any) -> tuple[int, int, str]:
    process, descriptor, password = value
    return integer(process), integer(descriptor), text(password)


def _open(process: int, descriptor: int, password: str, size: int) -> mmap.mmap:
    """Map the area that `process` holds as `descriptor`; raise OSError if this is not it."""
    own = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    try:
        memory = mmap.mmap(own, size)
    finally:
        os.close(own)
    if memory[: len(password)] != password.encode():
        raise FileNotFoundError(f"process {process} belongs to another host")
    return memory


def _add_up(written: list[Tensor], out: Tensor) -> None:
    torch.add(written[0], written[1], out=out)
    for rows in written[2:]:
        out.add_(rows)
