"""What the C library does with memory that is freed."""

from __future__ import annotations

import torch


def keep_freed_memory() -> None:
    """Let the C library keep the vectors that a step or a round frees, for the next to use.

    glibc gives freed memory back to the kernel beyond twice the largest block that it has seen
    freed, and new pages then cost a tenth of a small model's step and of a large round. One block
    of 30 MB, which is never written to, teaches it to keep 60 MB; it takes no lessons from blocks
    above 32 MB.
    """
    torch.empty(30 * 2**20, dtype=torch.uint8)
