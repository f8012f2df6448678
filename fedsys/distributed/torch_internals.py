"""The only module that uses private parts of torch.

fedsys changes how torchrun starts, stops and connects ranks. torchrun has no options for that, so
this module replaces classes of torch.distributed.elastic and overrides private methods, which any
release of torch may change. Other modules use its functions. With a torch that it was not tested
with, `is_tested` is false: plain torchrun starts the ranks, and a warning lists what is lost.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from typing_extensions import override

from fedsys.distributed import launcher_hooks
from fedsys.distributed.launcher_hooks import ElasticMeeting, LauncherHooks, Meeting
from fedsys.distributed.network import LOOPBACK
from fedsys.distributed.rendezvous_state import SharedState, decode_state, encode_state

TESTED_VERSIONS = ("2.13", *re.findall(r"\d+\.\d+", os.environ.get("FEDSYS_TESTED_TORCH", "")))
"""The versions of torch, without the patch release, that this module was tested with."""

SocketContext = Callable[[Callable[[], None]], AbstractContextManager[None]]

_SECONDS_CACHED = 1.0
_TIMEOUTS = ("join", "last_call", "close", "heartbeat")


def is_tested() -> bool:
    """Return whether this module was tested with the installed version of torch."""
    return ".".join(str(torch.__version__).split(".")[:2]) in TESTED_VERSIONS


def untested_message(loss: str) -> str:
    """Return the warning about a torch that this module was not tested with, and what is lost."""
    tested = ", ".join(TESTED_VERSIONS)
    return f"warning: fedsys was tested with torch {tested}, not with {torch.__version__}: {loss}"


def has_hooks(module: nn.Module) -> bool:
    """Return whether a call of the module runs more than its forward method."""
    return bool(module._forward_pre_hooks or module._forward_hooks)


def is_compiled(module: nn.Module) -> bool:
    """Return whether `module.compile()` was called."""
    return module._compiled_call_impl is not None


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """Parse the options of torchrun and the command of the ranks."""
    from torch.distributed.run import parse_args

    args: Namespace = parse_args([*arguments])
    return args


def run(args: Namespace, hooks: LauncherHooks) -> None:
    """Run torchrun with the hooks and raise its errors as those of `launcher_hooks`."""
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher import api as launcher

    launcher.LocalElasticAgent = _agent_class(hooks)  # type: ignore[misc]
    # Ranks report their own failures; torchrun's log would only hide that line.
    for part in ("multiprocessing.api", "agent.server.api", "rendezvous.dynamic_rendezvous"):
        logging.getLogger(f"torch.distributed.elastic.{part}").setLevel(logging.CRITICAL)
    try:
        torchrun.run(args)
    except ChildFailedError as failure:
        rank, first = failure.get_first_failure()
        raise launcher_hooks.RankFailedError(rank, first.exitcode) from failure
    except SignalException as stopped:
        raise launcher_hooks.LauncherStoppedError(stopped.sigval) from stopped
    except (RendezvousError, dist.DistError) as error:
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise launcher_hooks.RendezvousFailedError(line) from error


def stop_launcher(number: int) -> NoReturn:
    """Stop torchrun as if a signal had reached its own handler; call it in a signal handler."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    raise SignalException("stopped by a second signal", signal.Signals(number))


def _agent_class(hooks: LauncherHooks) -> Any:
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    class HookedAgent(LocalElasticAgent):
        @override
        def _rendezvous(self, worker_group: WorkerGroup) -> None:
            super()._rendezvous(worker_group)
            handler: Any = worker_group.spec.rdzv_handler
            if hasattr(handler, "_state_holder"):
                hooks.on_rendezvous(handler._state_holder.state.round)

        @override
        def _stop_workers(self, worker_group: WorkerGroup) -> None:
            self._shutdown(timeout=hooks.seconds_to_checkpoint)

        @override
        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            def started() -> Iterable[int]:
                return self._pcontext.pids().values() if self._pcontext else ()

            with hooks.starting(worker_group.workers[0].world_size, started):
                pids: dict[int, Any] = super()._start_workers(worker_group)
                self._hook_close(worker_group.group_world_size == 1)
            return pids

        @override
        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result: RunResult = super()._monitor_workers(worker_group)
            if not hooks.may_restart([one.exitcode for one in result.failures.values()]):
                self._remaining_restarts = 0
            return result

        def _hook_close(self, is_one_host: bool) -> None:
            ranks: Any = self._pcontext
            close = ranks._close

            def hooked(death_sig: signal.Signals, timeout: int = 30) -> None:
                codes = [failure.exitcode for failure in ranks._failures.values()]
                close(*hooks.closing(codes, is_one_host, death_sig, timeout))

            ranks._close = hooked

    return HookedAgent


def is_this_host(host: str) -> bool:
    """Return whether a name or an address is one of this host."""
    from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname

    return bool(_matches_machine_hostname(host))


def register_fixed(backend: str, prepare: Callable[[Any], Callable[[], Meeting]]) -> None:
    """Register a rendezvous backend whose hosts are known in advance.

    `prepare` takes torchrun's parameters and returns the function that meets the other launchers.
    """
    from torch.distributed.elastic import rendezvous
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    class FixedRendezvous(StaticTCPRendezvous):
        def __init__(self, params: rendezvous.RendezvousParameters) -> None:
            super().__init__(LOOPBACK, 0, 0, 1, params.run_id, 0)
            self._backend, self._meet = params.backend, prepare(params)

        @override
        def get_backend(self) -> str:
            return self._backend

        @override
        def next_rendezvous(self) -> rendezvous.RendezvousInfo:
            met = self._meet()
            info = rendezvous.RendezvousStoreInfo(LOOPBACK, met.port)
            return rendezvous.RendezvousInfo(met.store, met.host, met.hosts, info)

    rendezvous.rendezvous_handler_registry.register(backend, FixedRendezvous)


def register_elastic(backend: str, prepare: Callable[[Any], ElasticMeeting]) -> None:
    """Register a rendezvous backend for hosts that come and go: torch's protocol, without pickle.

    `prepare` takes torchrun's parameters and connects to the store of the launchers.
    """
    from torch.distributed.elastic import rendezvous
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    class ElasticRendezvous(DynamicRendezvousHandler):
        def __init__(self, params: rendezvous.RendezvousParameters) -> None:
            self._meeting = prepare(params)
            settings, store = _settings(params), self._meeting.launchers
            node = self._node_desc_generator.generate(params.local_addr)
            super().__init__(node, settings, params.backend, store, state_holder(store, settings))

        @override
        def next_rendezvous(self) -> rendezvous.RendezvousInfo:
            # torch would keep the old one, which may have been lost with its host.
            self._bootstrap_store_info = self._shared_tcp_store_server = None
            self._meeting.close()
            info = super().next_rendezvous()
            found: Any = info.bootstrap_store_info
            port = self._meeting.port_of(found.master_addr, int(found.master_port))
            local = rendezvous.RendezvousStoreInfo(LOOPBACK, port)
            return rendezvous.RendezvousInfo(info.store, info.rank, info.world_size, local)

        @override
        def _create_tcp_store_server(self, master_addr: str, master_port: int) -> Any:
            return self._meeting.host(master_addr)

    rendezvous.rendezvous_handler_registry.register(backend, ElasticRendezvous)


def _settings(params: Any) -> Any:
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

    given = {name: params.get(f"{name}_timeout") for name in _TIMEOUTS}
    timeouts = {name: timedelta(seconds=int(value)) for name, value in given.items() if value}
    return dynamic.RendezvousSettings(
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        dynamic.RendezvousTimeout(**timeouts),
        timedelta(seconds=int(params.get("keep_alive_interval", 5))),
        int(params.get("keep_alive_max_attempt", 3)),
    )


def state_holder(store: dist.Store, settings: Any) -> Any:
    """Return torch's holder of a rendezvous state, with JSON in the store in place of a pickle."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

    class JsonStateHolder(dynamic._BackendRendezvousStateHolder):
        def __init__(self) -> None:
            super().__init__(None, settings)  # type: ignore[arg-type]  # only sync uses it
            with _rendezvous_errors():
                self._shared = SharedState(store, settings.run_id)

        @override
        def sync(self) -> bool | None:
            if not self._dirty and self._last_sync_time >= max(monotonic() - _SECONDS_CACHED, 0):
                return None
            mine = encode_state(self._state) if self._dirty else None
            state = dynamic._RendezvousState()
            with _rendezvous_errors():
                found = self._shared.exchange(mine, self._token)
                if found is not None:
                    decode_state(found, state, dynamic._NodeDesc)
            self._state, self._token, self._dirty = state, found, False
            self._last_sync_time = monotonic()
            self._sanitize()
            return None if mine is None else found == mine.encode()

    return JsonStateHolder()


@contextmanager
def _rendezvous_errors() -> Iterator[None]:
    from torch.distributed.elastic import rendezvous

    try:
        yield
    except ConnectionError as error:
        raise rendezvous.RendezvousConnectionError(str(error)) from error
    except ValueError as error:
        raise rendezvous.RendezvousStateError(str(error)) from None


@contextmanager
def gloo_devices_in(interfaces: Sequence[str], context: SocketContext) -> Iterator[None]:
    """Let process groups of gloo open their sockets on these interfaces inside of a context.

    The context gets a function that opens the listening sockets, and calls it on entry. Without
    interfaces gloo chooses one. Does nothing if torch is untested or has no gloo.
    """
    from torch.distributed import distributed_c10d

    plain: Any = getattr(distributed_c10d, "ProcessGroupGloo", None)
    needed = ("_Options", "create_device", "create_default_device")
    if not is_tested() or not all(hasattr(plain, name) for name in needed):
        yield
        return

    class HookedGloo(plain):  # type: ignore[misc]
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, **_: Any) -> None:
            # Further options (torch 2.15: enable_reconfigure) keep their defaults.
            options = plain._Options()

            def open_sockets() -> None:
                named = [plain.create_device(interface=name) for name in interfaces]
                options._devices = named or [plain.create_default_device()]
                options._threads, options._timeout = 2 * len(options._devices), timeout

            with context(open_sockets):
                super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = HookedGloo  # type: ignore[misc]
    try:
        yield
    finally:
        distributed_c10d.ProcessGroupGloo = plain  # type: ignore[misc]
