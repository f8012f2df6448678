"""torchrun's agent, which starts the ranks of one host, with the habits that fedsys needs."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException

from fedsys.errors import InputError, InterruptedRunError

_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1)
_SECONDS_TO_KEEP_STATE = 5
_SECONDS_TO_END = 2
_FINAL = (InputError.exit_code, InterruptedRunError.exit_code)


class Agent(LocalElasticAgent):
    """Restarts ranks that crashed, but none that were asked wrongly or were asked to stop.

    SIGTERM and SIGUSR1 go to the ranks, which take their time to keep their state and then end the
    job themselves; a second SIGTERM is torchrun's, after which ranks have 30 seconds.
    """

    _stopping = False

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Hosts that meet again do so at a new store, hosted by the first of those that are left.

        torchrun would keep the old one, which may have been lost with its host.
        """
        handler: Any = worker_group.spec.rdzv_handler
        if hasattr(handler, "_shared_tcp_store_server"):
            handler._bootstrap_store_info = handler._shared_tcp_store_server = None
        super()._rendezvous(worker_group)
        if hasattr(handler, "_state_holder"):
            # Restarts are counted by each host for itself; these are the same everywhere.
            os.environ["FEDSYS_ATTEMPT"] = str(handler._state_holder.state.round)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """When another host joins, ranks are asked to keep their state; a lost one cannot."""
        self._shutdown(timeout=_SECONDS_TO_KEEP_STATE)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # One client per rank of the first meeting, also when fewer come to the next.
        os.environ.setdefault("FEDSYS_CLIENTS", str(worker_group.workers[0].world_size))
        pids: dict[int, Any] = super()._start_workers(worker_group)
        self._end_soon(self._pcontext, worker_group.group_world_size == 1)
        for number in _PASSED_ON:
            signal.signal(number, self._pass_on)
        return pids

    @staticmethod
    def _end_soon(ranks: Any, one_host: bool) -> None:
        """When a rank is lost, torchrun would let the others wait for it for 30 seconds.

        They need a moment to say which; none where this launcher saw it die, and says so.
        """
        close = ranks._close

        def close_soon(death_sig: signal.Signals, timeout: int = 30) -> None:
            codes = [failure.exitcode for failure in ranks._failures.values()]
            if one_host and any(code < 0 for code in codes):
                death_sig = signal.SIGKILL
            lost = codes and not any(code in _FINAL for code in codes)
            close(death_sig, _SECONDS_TO_END if lost else timeout)

        ranks._close = close_soon

    def _pass_on(self, number: int, frame: object) -> None:
        if self._stopping and number == signal.SIGTERM:
            raise SignalException("asked to stop twice", signal.Signals(number))
        self._stopping = True
        for pid in self._pcontext.pids().values() if self._pcontext else ():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        codes = [failure.exitcode for failure in result.failures.values()]
        if self._stopping or any(code in _FINAL for code in codes):
            self._remaining_restarts = 0
        return result
