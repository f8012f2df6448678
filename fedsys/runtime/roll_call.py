"""When a rank is lost: who is still here, which of them tells of it, and that all of them end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any

import torch.distributed as dist

from fedsys.errors import LostRankError

Say = Callable[[str], None]

_BELL, _SAID = "a rank is lost", "it is said who"
_WAITS, _BUSY = "waits", "busy"
_SECONDS_TO_ANSWER = 3.0
_SECONDS_TO_SAY = 0.6
_SECONDS_TO_NOTICE = 1.0


class RollCall:
    """Who has lost a rank rings a bell in the store, and everybody who hears it says so.

    A thread hears it: only the neighbours of a dead rank see that a connection is closed, and the
    others would wait in their collective for the timeout. A rank that does not answer died, was
    stopped or was cut off. If all answer, the one that does not wait for the others hangs.

    Args:
        rank: the number of this rank.
        hosts: the host of each rank.
        store: where the ranks leave notes for each other.
        is_waiting: whether this rank is in a collective.
    """

    def __init__(
        self, rank: int, hosts: Sequence[str], store: Any, is_waiting: Callable[[], bool]
    ) -> None:
        self._rank, self._hosts, self._store = rank, hosts, store
        self._is_waiting = is_waiting
        self._listens = self._has_noticed = self._first_was_here = False
        self._lock = Lock()
        self.is_over = False
        """Whether it is known who was lost; the run cannot go on."""

    def listen(self, say: Say) -> None:
        """Answer from now on, and end the process if it waits for a rank that is lost."""
        if self._listens:
            return
        self._listens = True
        # A connection of its own: the thread's call keeps it busy.
        Thread(target=self._listen, args=(self._store.clone(), say), daemon=True).start()

    def hold(self, cause: str, say: Say) -> None:
        """What a rank does that has lost another; returns when one rank has said which."""
        self._has_noticed = True
        self._hold(self._store, cause, say)

    def _listen(self, store: Any, say: Say) -> None:
        try:
            store.wait([_BELL], timedelta(days=365))
            cause = str(store.get(_BELL), "utf-8")
        except RuntimeError:  # the store is gone: its rank is lost, or the run has ended
            sleep(_SECONDS_TO_NOTICE)
            cause = "its connection was closed"
            if not self._is_waiting():
                return
        self._hold(store, cause, say)
        if self._is_waiting():
            sys.stdout.flush()
            os._exit(LostRankError.exit_code)

    def _hold(self, store: Any, cause: str, say: Say) -> None:
        with self._lock:
            if self.is_over:
                return
            try:
                answers = self._ask(store, cause)
                reporter, message = self._verdict(answers, cause)
            except dist.DistNetworkError:
                reporter, message = self._verdict_without_store(cause)
            if reporter == self._rank:
                say(message)
            self.is_over = True
            try:
                if reporter == self._rank:
                    store.set(_SAID, "")
                else:  # lest the launcher, which stops all when one has ended, stops that one
                    store.wait([_SAID], timedelta(seconds=_SECONDS_TO_SAY))
            except RuntimeError:
                pass  # there is nobody left to wait for

    def _ask(self, store: Any, cause: str) -> dict[int, str]:
        """What each rank that is still here does."""
        deadline = monotonic() + _SECONDS_TO_ANSWER
        store.set(_present(self._rank), self._state())
        store.set(_BELL, cause)
        answers: dict[int, str] = {}
        for rank in range(len(self._hosts)):
            if state := _answer(store, rank, deadline):
                answers[rank] = state
                self._first_was_here |= rank == 0
        return answers

    def _state(self) -> str:
        """Whether this rank waits for others; it may just be about to notice that one is lost."""
        deadline = monotonic() + _SECONDS_TO_NOTICE
        while monotonic() < deadline:
            if self._has_noticed or self._is_waiting():
                return _WAITS
            sleep(0.02)
        return _BUSY

    def _verdict(self, answers: dict[int, str], cause: str) -> tuple[int, str]:
        """Who speaks, and what it says."""
        ranks = range(len(self._hosts))
        lost = [rank for rank in ranks if rank not in answers]
        lost = lost or [rank for rank in ranks if answers[rank] == _BUSY]
        left = [rank for rank in ranks if rank not in lost]
        if not lost or not left:
            return 0, f"a collective failed although every rank is alive: {cause}"
        if left == [self._rank] and len(ranks) > 2:
            return self._rank, f"{self._names(left)} was cut off from all others ({cause})"
        return left[0], self._line(lost, cause)

    def _verdict_without_store(self, cause: str) -> tuple[int, str]:
        """The first rank is lost, or its host: one speaks that has not gone with it."""
        if self._first_was_here:
            return 0, ""  # it has said who is lost, and left
        elsewhere = [rank for rank, host in enumerate(self._hosts) if host != self._hosts[0]]
        return (elsewhere or [1])[0], self._line([0], cause)

    def _line(self, lost: list[int], cause: str) -> str:
        if len(lost) == 1:
            return f"{self._names(lost)} is lost: it died, hangs or was cut off ({cause})"
        return f"{self._names(lost)} are lost: they died, hang or were cut off ({cause})"

    def _names(self, ranks: list[int]) -> str:
        names = ", ".join(f"{rank} ({self._hosts[rank]})" for rank in ranks)
        return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def _present(rank: int) -> str:
    return f"present {rank}"


def _answer(store: Any, rank: int, deadline: float) -> str:
    """What a rank answers, or nothing."""
    seconds = deadline - monotonic()
    try:
        if seconds > 0:
            store.wait([_present(rank)], timedelta(seconds=max(seconds, 0.01)))
        elif not store.check([_present(rank)]):
            return ""
        return str(store.get(_present(rank)), "utf-8")
    except dist.DistStoreError:
        return ""
