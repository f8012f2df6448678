"""A signal that asks a run to stop, at any rank: all ranks follow it after the same round."""

from __future__ import annotations

import signal
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import Any

from fedsys.runtime.agreement import Agreement
from fedsys.runtime.world import World

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""What docker stop and launchers send, and what SLURM can be told to send before its time limit."""

_ASKED = "a stop was asked for"


class Interruption:
    """Lets all ranks stop after the same round.

    Who did not get the signal hears of it from a thread that sleeps until there is something to
    hear, so an undisturbed round costs the reading of one attribute.

    Args:
        world: the ranks that stop together.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._cause = ""
        self._agreement = Agreement(world, "stop")
        self._has_told = False
        self._listens = False

    def listen(self) -> None:
        """From now on the signals no longer end this process, but its run."""
        self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def listen_to_others(self) -> None:
        """The same for the signals that other ranks get; once the ranks can meet."""
        if self._world.ranks > 1 and not self._listens:
            self._listens = True
            # A connection of its own: the thread's call keeps it busy.
            store = self._world.store.clone()
            Thread(target=self._wait_for_others, args=(store,), daemon=True).start()

    def let_go(self) -> None:
        """Let the signals end the process again: there is nothing left to save."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def cause(self) -> str:
        """Which signal, and at which rank."""
        return self._cause

    def is_due(self, rounds: int) -> bool:
        """Whether all ranks stop after this round; each asks at the end of every one."""
        if not self._cause:
            return False
        if self._world.ranks > 1 and not self._has_told:
            self._has_told = True
            self._world.store.set(_ASKED, self._cause)
        return self._agreement.holds(rounds)

    def _on_signal(self, number: int, frame: object) -> None:
        name = signal.Signals(number).name
        where = f" to rank {self._world.rank}" if self._world.ranks > 1 else ""
        self._cause = self._cause or name + where

    def _wait_for_others(self, store: Any) -> None:
        with suppress(RuntimeError):  # the store is gone, and with it the run
            store.wait([_ASKED], timedelta(days=365))
            self._cause = self._cause or str(store.get(_ASKED), "utf-8")
