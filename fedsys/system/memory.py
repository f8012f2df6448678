"""Reuse of freed memory, and copies of NumPy arrays to a device."""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedsys.system.process import is_tuned

_TRIM_THRESHOLD_BLOCK_BYTES = 30 * 2**20
"""Freeing a block of this size raises glibc's dynamic trim threshold to twice as much."""
_LARGEST_KEPT_BLOCK_BYTES = 2**28
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h


def keep_freed_memory(largest_block_bytes: int = 0) -> None:
    """Let the C library keep the memory that a step or a round frees, for the next one to use.

    Does nothing unless `fedsys.tune_process` was called.

    By default glibc returns freed memory to the kernel, and faulting in new pages costs a tenth of
    a small model's step and of a large round. Freeing a 30 MB block, which is never written to,
    raises glibc's dynamic trim threshold to 60 MB; larger blocks do not affect it. Blocks above
    32 MB are mapped and faulted in anew every time, so if steps allocate such blocks, glibc is set
    to keep everything: a step on 40 MB of rows then takes half the time. Kept memory fragments:
    with blocks above 256 MB the process would hold several times what is in use, so for those the
    default stays.

    Args:
        largest_block_bytes: size of the largest tensor that every step allocates.
    """
    if not is_tuned():
        return
    torch.empty(_TRIM_THRESHOLD_BLOCK_BYTES, dtype=torch.uint8)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    keeps_all = _TRIM_THRESHOLD_BLOCK_BYTES < largest_block_bytes <= _LARGEST_KEPT_BLOCK_BYTES
    if keeps_all and mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


_SMALLEST_RECYCLED_BYTES = 2**20
_ALIGNMENT_BYTES = 64  # a cache line
_free_blocks: defaultdict[int, list[np.ndarray]] = defaultdict(list)


def recycled(like: Tensor, *shape: int) -> Tensor:
    """Return an uninitialised tensor of the given shape in the memory of a freed one of its size.

    For the rows of many clients, which every step allocates anew. The C library would serve small
    requests from the gap that an old block leaves, the next block would no longer fit, and after a
    few steps twice the memory would be in use. On a GPU torch itself reuses blocks by size.
    """
    size = prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < _SMALLEST_RECYCLED_BYTES:
        return like.new_empty(shape)
    free = _free_blocks[size]
    block = free.pop() if free else _aligned(size)
    handle = block[:]  # lives as long as the tensor's memory is in use, by whatever view
    weakref.finalize(handle, free.append, block).atexit = False
    return torch.from_numpy(handle).view(like.dtype).view(shape)


def _aligned(size: int) -> np.ndarray:
    raw = np.empty(size + _ALIGNMENT_BYTES, dtype=np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT_BYTES
    return raw[first : first + size]


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array that was drawn on the CPU to a device.

    A copy from pinned memory to a GPU is asynchronous; from pageable memory it would first wait
    for all earlier kernels. torch keeps the pinned block until the copy is done.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
