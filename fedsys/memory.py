"""What the C library does with memory that is freed, and how numbers reach a device."""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict
from math import prod

import numpy as np
import torch
from torch import Tensor

_LESSON = 30 * 2**20
_TOO_MUCH = 2**28
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h


def keep_freed_memory(block: int = 0) -> None:
    """Let the C library keep the vectors that a step or a round frees, for the next to use.

    glibc gives freed memory back to the kernel beyond twice the largest block that it has seen
    freed, and new pages then cost a tenth of a small model's step and of a large round. One block
    of 30 MB, which is never written to, teaches it to keep 60 MB; it takes no lessons from blocks
    above 32 MB, for which new pages are mapped and faulted in every time. Where such are in use it
    is told to keep everything: a step on 40 MB of rows then takes half the time. But what it keeps
    falls into pieces: of blocks beyond 256 MB it would hold several times what is in use.

    Args:
        block: the bytes of the largest tensor that every step makes.
    """
    torch.empty(_LESSON, dtype=torch.uint8)
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if _LESSON < block <= _TOO_MUCH and tell is not None:
        tell(_M_MMAP_MAX, 0)
        tell(_M_TRIM_THRESHOLD, 2**31 - 1)


_WORTHWHILE = 2**20
_ALIGNMENT = 64  # a line of the cache
_left: defaultdict[int, list[np.ndarray]] = defaultdict(list)


def recycled(like: Tensor, *shape: int) -> Tensor:
    """A tensor of the same kind with any content, where one of its size was before.

    For the rows of many clients, of which every step makes new ones. The C library cuts small
    pieces out of the place that an old block has left, the next one no longer fits in, and after a
    few steps twice the memory is in use. On a GPU torch keeps blocks by their size itself.
    """
    size = prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < _WORTHWHILE:
        return like.new_empty(shape)
    left = _left[size]
    block = left.pop() if left else _aligned(size)
    handle = block[:]  # lives as long as the tensor's memory is in use, by whatever view
    weakref.finalize(handle, left.append, block).atexit = False
    return torch.from_numpy(handle).view(like.dtype).view(shape)


def _aligned(size: int) -> np.ndarray:
    raw = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first : first + size]


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Numbers that were drawn on the CPU, on the device of a step.

    A GPU copies from pinned memory while the CPU goes on; from any other it would first wait for
    all kernels before it. torch keeps the pinned block until the copy is done.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
