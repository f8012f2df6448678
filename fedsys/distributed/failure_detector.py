"""Detect a lost rank: find out which one, report it once and end all surviving ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any

import torch.distributed as dist

from fedsys.core.errors import LostRankError
from fedsys.distributed.parent import launcher_is_stopped

PrintLine = Callable[[str], None]

# Keys of the store: the cause of the failure, and whether one rank has reported it.
_FAILURE, _REPORTED = "failure", "failure reported"
# What a rank acknowledges a failure with.
_WAITING, _BUSY = "waiting", "busy"
_SECONDS_TO_ACKNOWLEDGE = 3.0
_SECONDS_TO_REPORT = 0.6
_SECONDS_TO_NOTICE = 1.0
_POLL_SECONDS = 0.02


class FailureDetector:
    """Find out which rank was lost.

    A rank that detects a failure sets a key in the store; every surviving rank acknowledges it. A
    thread of each rank waits for the key: only the neighbours of a dead rank see that a connection
    is closed, and the others would stay in their collective until its timeout. A rank that does not
    acknowledge the failure died, was stopped or was cut off. If all ranks acknowledge it, the rank
    that is not waiting for the others hangs.

    Args:
        rank: number of this rank.
        hosts: host name of each rank.
        store: the store that the ranks share.
        is_waiting: returns whether this rank is in a collective.
    """

    def __init__(
        self, rank: int, hosts: Sequence[str], store: Any, is_waiting: Callable[[], bool]
    ) -> None:
        self._rank, self._hosts, self._store = rank, hosts, store
        self._is_waiting = is_waiting
        self._is_listening = self._has_noticed = self._first_rank_acknowledged = False
        self._lock = Lock()
        self.is_over = False
        """Whether the lost rank is known; the run cannot continue."""

    def listen(self, print_line: PrintLine) -> None:
        """Start to acknowledge failures, and end this process if it waits for a lost rank.

        Args:
            print_line: prints the message if this rank is the one that reports the failure.
        """
        if self._is_listening:
            return
        self._is_listening = True
        # The blocking wait of the thread occupies its connection, so it needs one of its own.
        Thread(target=self._listen, args=(self._store.clone(), print_line), daemon=True).start()

    def report_lost_rank(self, cause: str, print_line: PrintLine) -> None:
        """Announce that this rank lost another; return once one rank has reported which.

        Args:
            cause: error that the collective of this rank raised.
            print_line: prints the message if this rank is the one that reports the failure.
        """
        self._has_noticed = True
        self._report(self._store, cause, print_line)

    def _listen(self, store: Any, print_line: PrintLine) -> None:
        try:
            store.wait([_FAILURE], timedelta(days=365))
            cause = str(store.get(_FAILURE), "utf-8")
        except RuntimeError:  # the store is gone: its process is lost, or the run has ended
            sleep(_SECONDS_TO_NOTICE)
            cause = "its connection was closed"
            # A step may take minutes; only a rank that waits for others has lost one.
            self._wait_until_waiting()
        self._report(store, cause, print_line)
        # Meanwhile the main thread may notice the failure itself and end the process.
        self._wait_until_waiting()
        sys.stdout.flush()
        os._exit(LostRankError.exit_code)

    def _wait_until_waiting(self) -> None:
        while not self._is_waiting():
            sleep(_POLL_SECONDS)

    def _report(self, store: Any, cause: str, print_line: PrintLine) -> None:
        with self._lock:
            if self.is_over:
                return
            if launcher_is_stopped():  # and with it the store, which would not answer
                if self._rank == self._hosts.index(self._hosts[self._rank]):
                    print_line(self._line_about_launcher())
                self.is_over = True
                return
            try:
                states = self._collect_states(store, cause)
                reporter, message = self._verdict(states, cause)
            except dist.DistNetworkError:
                reporter, message = self._verdict_without_store(cause)
            if reporter == self._rank:
                print_line(message)
            self.is_over = True
            try:
                if reporter == self._rank:
                    store.set(_REPORTED, "")
                else:
                    # The launcher stops all ranks when one has ended; let the reporter print first.
                    store.wait([_REPORTED], timedelta(seconds=_SECONDS_TO_REPORT))
            except RuntimeError:
                pass  # no rank is left to wait for

    def _collect_states(self, store: Any, cause: str) -> dict[int, str]:
        """Announce the failure and return the state of each rank that acknowledges it."""
        deadline = monotonic() + _SECONDS_TO_ACKNOWLEDGE
        store.set(_acknowledgement(self._rank), self._state())
        store.set(_FAILURE, cause)
        states: dict[int, str] = {}
        for rank in range(len(self._hosts)):
            if state := _state_of(store, rank, deadline):
                states[rank] = state
                self._first_rank_acknowledged |= rank == 0
        return states

    def _state(self) -> str:
        """Return whether this rank waits for others; it may be about to notice the failure."""
        deadline = monotonic() + _SECONDS_TO_NOTICE
        while monotonic() < deadline:
            if self._has_noticed or self._is_waiting():
                return _WAITING
            sleep(_POLL_SECONDS)
        return _BUSY

    def _verdict(self, states: dict[int, str], cause: str) -> tuple[int, str]:
        """Return the rank that reports the failure, and its message."""
        ranks = range(len(self._hosts))
        lost = [rank for rank in ranks if rank not in states]
        lost = lost or [rank for rank in ranks if states[rank] == _BUSY]
        left = [rank for rank in ranks if rank not in lost]
        if not lost or not left:
            return 0, f"a collective failed although every rank is alive: {cause}"
        if left == [self._rank] and len(ranks) > 2:
            return self._rank, f"{self._names(left)} was cut off from all others ({cause})"
        return left[0], self._line(lost, cause)

    def _verdict_without_store(self, cause: str) -> tuple[int, str]:
        """Return the reporter and its message if the first rank, or its host, is lost.

        The reporter is the first rank of another host, which cannot be lost with that host.
        """
        if self._first_rank_acknowledged:
            return 0, ""  # it has reported the lost rank and left
        elsewhere = [rank for rank, host in enumerate(self._hosts) if host != self._hosts[0]]
        return (elsewhere or [1])[0], self._line([0], cause)

    def _line(self, lost: list[int], cause: str) -> str:
        if len(lost) == 1:
            return f"{self._names(lost)} is lost: it died, hangs or was cut off ({cause})"
        return f"{self._names(lost)} are lost: they died, hang or were cut off ({cause})"

    def _line_about_launcher(self) -> str:
        process = os.getppid()
        return (
            f"the launcher of {self._hosts[self._rank]} (process {process}) is stopped and does "
            f"not answer its ranks; kill it (kill -9 {process}) and start the same command again"
        )

    def _names(self, ranks: list[int]) -> str:
        names = ", ".join(f"{rank} ({self._hosts[rank]})" for rank in ranks)
        return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def _acknowledgement(rank: int) -> str:
    return f"failure acknowledged by {rank}"


def _state_of(store: Any, rank: int, deadline: float) -> str:
    """Return the state that a rank acknowledges the failure with, or "" if it does not."""
    key = _acknowledgement(rank)
    seconds = deadline - monotonic()
    try:
        if seconds > 0:
            store.wait([key], timedelta(seconds=max(seconds, 0.01)))
        elif not store.check([key]):
            return ""
        return str(store.get(key), "utf-8")
    except dist.DistStoreError:
        return ""
