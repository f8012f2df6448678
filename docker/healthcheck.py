"""A container is healthy while a rank computes in it; the meeting place, while it is open.

A launcher that waits for the others has no rank: a client that stays alone becomes unhealthy.
"""

import sys
from pathlib import Path

SIGNS = (b"-m\0fedsys\0", b"rendezvous.py\0")


def is_at_work(process: Path) -> bool:
    """Whether this is a rank or the meeting place; one that has ended meanwhile is neither."""
    try:
        return any(sign in (process / "cmdline").read_bytes() for sign in SIGNS)
    except OSError:
        return False


sys.exit(not any(map(is_at_work, Path("/proc").glob("[0-9]*"))))
