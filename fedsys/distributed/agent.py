"""Start, restart and stop the ranks of a host, as the launcher does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from typing_extensions import override

from fedsys.core.errors import InputError, InterruptedRunError
from fedsys.distributed import parent, torch_internals
from fedsys.distributed.launcher_hooks import LauncherHooks
from fedsys.distributed.stop_signal import SIGNALS

_ENDS_AT_THE_SECOND = (signal.SIGINT, signal.SIGTERM)
_SECONDS_TO_REPORT = 2
_FINAL_EXIT_CODES = (
    InputError.exit_code,
    InterruptedRunError.exit_code,
    InterruptedRunError.exit_code_of_ctrl_c,
)


class RankSupervisor(LauncherHooks):
    """Restart crashed ranks, except after an invalid configuration or a stop signal.

    Signals that request a stop are forwarded to the ranks, which run in sessions of their own; the
    ranks write a checkpoint and end the job. A second Ctrl-C kills the ranks at once. After a
    second SIGTERM, which torchrun handles, they have 30 seconds.
    """

    seconds_to_checkpoint = 5

    def __init__(self) -> None:
        self._is_stopping = self._kills_at_once = False
        self._process_ids: Callable[[], Iterable[int]] = tuple

    @override
    def on_rendezvous(self, number: int) -> None:
        # Each host counts its own restarts; the number of the rendezvous is the same on all hosts.
        os.environ["FEDSYS_ATTEMPT"] = str(number)

    @override
    @contextmanager
    def starting(self, ranks: int, process_ids: Callable[[], Iterable[int]]) -> Iterator[None]:
        self._process_ids = process_ids
        # One client per rank of the first rendezvous, also if fewer ranks take part in the next.
        os.environ.setdefault("FEDSYS_CLIENTS", str(ranks))
        os.environ[parent.LAUNCHER] = str(os.getpid())
        # torchrun installs a handler for SIGHUP even if nohup made the process ignore it.
        handled = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
        with _blocked(SIGNALS):
            yield
            for number in SIGNALS:
                signal.signal(number, self._forward if number in handled else signal.SIG_IGN)

    @override
    def closing(
        self, exit_codes: Sequence[int], is_one_host: bool, number: signal.Signals, seconds: int
    ) -> tuple[signal.Signals, int]:
        # If a signal killed a rank of this host, the launcher reports it itself. Otherwise the
        # remaining ranks need a moment to report which rank is lost, not torchrun's 30 seconds.
        if self._kills_at_once or (is_one_host and any(code < 0 for code in exit_codes)):
            number = signal.SIGKILL
        is_lost = exit_codes and not any(code in _FINAL_EXIT_CODES for code in exit_codes)
        return number, _SECONDS_TO_REPORT if is_lost else seconds

    @override
    def may_restart(self, exit_codes: Sequence[int]) -> bool:
        return not (self._is_stopping or any(code in _FINAL_EXIT_CODES for code in exit_codes))

    def _forward(self, number: int, frame: object) -> None:
        if self._is_stopping and number in _ENDS_AT_THE_SECOND:
            self._kills_at_once = number == signal.SIGINT
            torch_internals.stop_launcher(number)
        self._is_stopping = True
        for pid in self._process_ids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@contextmanager
def _blocked(signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Block signals in this process and in those that it starts meanwhile.

    A rank unblocks them once it can handle them, so a signal that arrives while the rank imports
    torch is neither lost nor ends the rank with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
