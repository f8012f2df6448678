"""The rendezvous of the launchers of a run: authenticated, and without pickle.

The backends of this module replace those of torchrun, whose stores listen on all interfaces and
accept every connection. Ranks connect to a store on the loopback interface of their own host. With
several hosts it leads to the store of the first host through a tunnel (tunnel.py), which is open to
hosts that know the shared secret.
"""

from __future__ import annotations

import errno
import os
import uuid
from argparse import Namespace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist
from typing_extensions import override

from fedsys.core.errors import InputError
from fedsys.distributed import network, stores, torch_internals
from fedsys.distributed.launcher_hooks import ElasticMeeting, Meeting
from fedsys.distributed.tunnel import Passage

_ONE_HOST, _STATIC, _DYNAMIC = "fedsys-one-host", "fedsys-static", "fedsys-c10d"
_PORT = 29400
_SECONDS_TO_JOIN = 600
_RANK_TIMEOUT = timedelta(minutes=5)


def secure(args: Namespace) -> None:
    """Replace the rendezvous backend in torchrun's options by the protected one.

    Raises:
        InputError: the hosts share no secret, or the backend has no protected counterpart.
    """
    if args.standalone or _max_hosts(args.nnodes) == 1:
        args.standalone, args.rdzv_backend = False, _ONE_HOST
        args.rdzv_endpoint, args.rdzv_id = "localhost:0", str(uuid.uuid4())
    elif args.rdzv_backend == "static":
        endpoint = args.rdzv_endpoint or f"{args.master_addr}:{args.master_port or 29500}"
        args.rdzv_backend, args.rdzv_endpoint = _STATIC, endpoint
        args.rdzv_conf = ",".join(filter(None, [args.rdzv_conf, f"rank={args.node_rank}"]))
        args.node_rank = 0  # torchrun warns if another backend than its own gets it
    elif args.rdzv_backend == "c10d":
        args.rdzv_backend = _DYNAMIC
    else:
        raise InputError(f"--rdzv-backend must be c10d or static, got {args.rdzv_backend!r}")
    if args.rdzv_backend != _ONE_HOST:
        secret = network.read_secret()
        meeting_host, _ = _parse_endpoint(args.rdzv_endpoint, _PORT)
        args.local_addr = network.own_address(args.local_addr, meeting_host)
        if interface := network.interface_of(args.local_addr):
            for name in network.INTERFACES:
                os.environ.setdefault(name, interface)
    else:
        secret = b""
    # Only the launchers need the secret, for the tunnel; ranks and their children do not.
    for name in (network.SECRET, network.SECRET_FILE):
        os.environ.pop(name, None)
    torch_internals.register_fixed(_ONE_HOST, lambda params: OneHostRendezvous().meet)
    torch_internals.register_fixed(_STATIC, lambda params: StaticRendezvous(params, secret).meet)
    torch_internals.register_elastic(_DYNAMIC, lambda params: DynamicRendezvous(params, secret))


def _max_hosts(number: str) -> int:
    """Return the largest number of hosts that --nnodes allows: N or MIN:MAX."""
    try:
        return int(number.rpartition(":")[2])
    except ValueError:
        raise InputError(f"--nnodes must be N or MIN:MAX, got {number!r}") from None


def _parse_endpoint(endpoint: str, default_port: int) -> tuple[str, int]:
    """Split HOST:PORT; an address of IPv6 is in brackets."""
    try:
        parts = urlsplit(f"//{endpoint}")
        return parts.hostname or "localhost", parts.port or default_port
    except ValueError:
        raise InputError(f"--rdzv-endpoint must be HOST:PORT, got {endpoint!r}") from None


class OneHostRendezvous:
    """A single launcher that hosts the store of its ranks on the loopback interface."""

    _ranks: stores.Store

    def meet(self) -> Meeting:
        """Host a new store for the ranks; earlier ranks may have left keys in the old one."""
        self._ranks = stores.host(_RANK_TIMEOUT)
        return Meeting(dist.HashStore(), 0, 1, self._ranks.port)


class StaticRendezvous:
    """Numbered hosts, the first of which hosts one store for launchers and ranks.

    Args:
        params: rendezvous parameters of torchrun.
        secret: shared by all hosts.
    """

    def __init__(self, params: Any, secret: bytes) -> None:
        self._run_id = params.run_id
        self._host, self._port = _parse_endpoint(params.endpoint, 29500)
        self._number, self._hosts = int(params.get("rank", 0)), params.max_nodes
        self._own, self._secret = str(params.local_addr), secret
        self._timeout = timedelta(seconds=int(params.get("timeout", _SECONDS_TO_JOIN)))
        self._store: stores.Store | None = None

    def meet(self) -> Meeting:
        """Host the store or connect to it, once."""
        if self._store is None and self._number == 0:
            address = network.meeting_address(self._host, self._own)
            self._store = _host(address, self._port, self._secret, self._timeout)
        elif self._store is None:
            self._store = stores.join_other(self._host, self._port, self._secret, self._timeout)
        shared = dist.PrefixStore(self._run_id, self._store.store)
        return Meeting(shared, self._number, self._hosts, self._store.port)


class DynamicRendezvous(ElasticMeeting):
    """Hosts that come and go. The host in the endpoint hosts the store of the launchers.

    Args:
        params: rendezvous parameters of torchrun.
        secret: shared by all hosts.
    """

    def __init__(self, params: Any, secret: bytes) -> None:
        self._secret = secret
        self._launchers = _launchers(params, secret)
        self.launchers = self._launchers.store
        self._ranks: stores.Store | None = None
        self._passage: Passage | None = None

    @override
    def close(self) -> None:
        for one in (self._ranks, self._passage):
            if one is not None:
                one.close()
        self._ranks = self._passage = None

    @override
    def host(self, address: str) -> Any:
        self._ranks = stores.host_for_others(address, 0, self._secret, _RANK_TIMEOUT)
        return self._ranks.tunnel

    @override
    def port_of(self, address: str, port: int) -> int:
        if self._ranks is not None:
            return self._ranks.port
        self._passage = Passage(address, port, self._secret)
        return self._passage.port


def _launchers(params: Any, secret: bytes) -> stores.Store:
    host, port = _parse_endpoint(params.endpoint, _PORT)
    timeout = timedelta(seconds=int(params.get("read_timeout", 60)))
    if torch_internals.is_this_host(host):
        address = network.meeting_address(host, str(params.local_addr))
        try:
            return stores.host_for_others(address, port, secret, timeout)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise InputError(f"cannot listen at {address}:{port}: {error.strerror}") from None
            # Another launcher of this host hosts it.
    return stores.join_other(host, port, secret, timeout)


def _host(address: str, port: int, secret: bytes, timeout: timedelta) -> stores.Store:
    try:
        return stores.host_for_others(address, port, secret, timeout)
    except OSError as error:
        raise InputError(f"cannot listen at {address}:{port}: {error.strerror}") from None
