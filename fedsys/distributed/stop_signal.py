"""A signal that asks a run to stop, at any rank: all ranks follow it after the same round."""

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
"""What docker stop and launchers send; what SLURM can be told to send before its time limit;
Ctrl-C; a terminal that is closed."""

_IGNORABLE = (signal.SIGINT, signal.SIGHUP)
"""What nohup, or a shell for its background jobs, can tell a process to ignore. Launchers ignore
others only until the process can handle them."""

_CTRL_C = "SIGINT (Ctrl-C)"

_ASKED = "a stop was asked for"


class StopSignal:
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
        self._has_state = self._got_ctrl_c = False
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """From now on the signals no longer end this process, but its run."""
        ignored = [n for n in _IGNORABLE if signal.getsignal(n) is signal.SIG_IGN]
        handled = [n for n in SIGNALS if n not in ignored]
        self._before = {number: signal.signal(number, self._on_signal) for number in handled}
        # A launcher holds them back while the process starts, see fedsys/distributed/agent.py.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

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

    def begin(self) -> None:
        """There is a state from now on, which a signal must not lose."""
        self._has_state = True

    @property
    def cause(self) -> str:
        """Which signal, and at which rank."""
        if not self._cause and self._world.ranks > 1:
            with suppress(RuntimeError):  # whoever got it has left a note before it stopped
                self._cause = str(self._world.store.get(_ASKED), "utf-8")
        return self._cause

    def error(self, message: str) -> InterruptedRunError:
        """The end of the run that the signal asked for."""
        return InterruptedRunError(f"{self.cause}: {message}", self.cause.startswith(_CTRL_C))

    def is_due(self, rounds: int) -> bool:
        """Whether all ranks stop after this round; each asks at the end of every one."""
        return self.is_asked_for() and self._agreement.holds(rounds)

    def is_asked_for(self) -> bool:
        """Whether this rank knows that the run is to stop; the others then learn of it, too."""
        if not self._cause:
            return False
        if self._world.ranks > 1 and not self._has_told:
            self._has_told = True
            try:
                self._world.store.set(_ASKED, self._cause)
            except RuntimeError as error:
                raise LostRankError("the store of the ranks is gone") from error
        return True

    def _on_signal(self, number: int, frame: object) -> None:
        # Not by the cause: another rank may have told of the same Ctrl-C before it arrives here.
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
