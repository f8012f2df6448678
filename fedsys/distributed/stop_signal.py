"""Signals that stop a run: all ranks stop after the same round, whichever rank received one."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import Any

from fedsys.core.errors import InterruptedRunError, LostRankError, print_error
from fedsys.distributed.agreement import Agreement
from fedsys.distributed.world import World

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
"""SIGTERM of launchers and `docker stop`, SIGUSR1 of SLURM before its time limit (`--signal`),
Ctrl-C, and SIGHUP of a terminal that is closed."""

_IGNORABLE = (signal.SIGINT, signal.SIGHUP)
"""Signals that nohup, or a shell for its background jobs, sets to be ignored. Launchers ignore the
other ones only until the process can handle them."""

_CTRL_C = "SIGINT (Ctrl-C)"

_ASKED = "a stop was asked for"


class StopSignal:
    """Stop all ranks after the same round.

    On the other ranks a thread waits for the key that the signalled rank sets in the store. A round
    without a signal costs one attribute access.

    Args:
        world: the ranks that stop together.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._cause = ""
        self._agreement = Agreement(world, "stop")
        self._is_passed_on = False
        self._listens = False
        self._has_state = self._got_ctrl_c = False
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Handle the signals: from now on they stop the run instead of ending the process."""
        ignored = [n for n in _IGNORABLE if signal.getsignal(n) is signal.SIG_IGN]
        handled = [n for n in SIGNALS if n not in ignored]
        self._before = {number: signal.signal(number, self._on_signal) for number in handled}
        # A launcher holds them back while the process starts, see fedsys/distributed/agent.py.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def listen_to_others(self) -> None:
        """Watch the store for signals that other ranks received; call it once the store is open."""
        if self._world.ranks > 1 and not self._listens:
            self._listens = True
            # A connection of its own: the thread's call keeps it busy.
            store = self._world.store.clone()
            Thread(target=self._wait_for_others, args=(store,), daemon=True).start()

    def let_go(self) -> None:
        """Restore the previous signal handlers, once there is nothing left to save."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def begin(self) -> None:
        """Declare that there is a state, which a signal must not lose."""
        self._has_state = True

    @property
    def cause(self) -> str:
        """The signal, and the rank that received it."""
        if not self._cause and self._world.ranks > 1:
            with suppress(RuntimeError):  # the signalled rank sets the key before it stops
                self._cause = str(self._world.store.get(_ASKED), "utf-8")
        return self._cause

    def error(self, message: str) -> InterruptedRunError:
        """Return the error that ends the run, with the signal as its cause."""
        return InterruptedRunError(f"{self.cause}: {message}", self.cause.startswith(_CTRL_C))

    def is_due(self, rounds: int) -> bool:
        """Return whether all ranks stop after this round; call it at the end of every round."""
        return self.is_asked_for() and self._agreement.holds(rounds)

    def is_asked_for(self) -> bool:
        """Return whether a stop was requested, and pass the request on to the other ranks."""
        if not self._cause:
            return False
        if self._world.ranks > 1 and not self._is_passed_on:
            self._is_passed_on = True
            try:
                self._world.store.set(_ASKED, self._cause)
            except RuntimeError as error:
                raise LostRankError("the store of the ranks is gone") from error
        return True

    def _on_signal(self, number: int, frame: object) -> None:
        # The cause cannot decide this: another rank may have passed on the same Ctrl-C already.
        is_second = number == signal.SIGINT and self._got_ctrl_c
        self._got_ctrl_c |= number == signal.SIGINT
        name = _CTRL_C if number == signal.SIGINT else signal.Signals(number).name
        where = f" to rank {self._world.rank}" if self._world.ranks > 1 else ""
        self._cause = self._cause or name + where
        if is_second:
            self._end_now("ended at once; the newest checkpoint is kept")
        if self._world.ranks == 1 and not self._has_state:
            self._end_now("stopped before the first step; there is nothing to keep")

    def _end_now(self, message: str) -> None:
        if self._world.rank == 0:
            print_error(f"{self._cause}: {message}")
        with suppress(Exception):  # it may be in the middle of printing
            sys.stdout.flush()
        os._exit(self.error(message).exit_code)

    def _wait_for_others(self, store: Any) -> None:
        with suppress(RuntimeError):  # the store is gone, and with it the run
            store.wait([_ASKED], timedelta(days=365))
            self._cause = self._cause or str(store.get(_ASKED), "utf-8")
