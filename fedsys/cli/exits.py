"""Report an error of a command-line process, and exit with its code."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from contextlib import suppress
from threading import Timer
from typing import NoReturn

from fedsys.core.errors import (
    LostRankError,
    UnforeseenError,
    debugs,
    print_error,
    unforeseen,
)
from fedsys.distributed.world import World

_SECONDS_TO_REPORT = 4.8


def report_unforeseen(error: Exception, world: World) -> int:
    """Report an unexpected exception in one line, on one rank; return the exit code."""
    reported = error if isinstance(error, UnforeseenError) else unforeseen(error)
    if debugs():
        traceback.print_exception(error)
    reported.reporter = world.rank
    if world.ranks > 1:
        with suppress(Exception):  # without a store, every rank reports its own exception
            first = world.store.add(f"unforeseen {world.meetings}", 1) == 1
            reported.reporter = world.rank if first else -1
    world.report_failure(reported, print_error)
    return reported.exit_code


def leave(world: World, code: int) -> NoReturn:
    """End the process with an exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    if world.ranks > 1:
        # The destructors of a failed rank must not wait for ranks that are gone; and a thread of
        # gloo that still holds a tensor aborts an interpreter that shuts down.
        os._exit(code)
    sys.exit(code)


def leave_after_lost_rank(world: World, error: LostRankError) -> NoReturn:
    """Report a lost rank and end the process, within seconds even if the store is lost too."""

    def leave_unreported() -> None:
        if not world.failure_detector.is_over:
            print_error(f"rank {world.rank} ({socket.gethostname()}) was cut off ({error.message})")
        os._exit(error.exit_code)

    timer = Timer(_SECONDS_TO_REPORT, leave_unreported)
    timer.daemon = True
    timer.start()
    world.report_failure(error, print_error)
    sys.stdout.flush()
    os._exit(error.exit_code)
