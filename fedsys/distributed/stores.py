"""The key-value store of the ranks of a run and their launchers: a TCPStore.

A TCPStore accepts every connection, so it listens on the loopback interface only. On several
hosts a gate (tunnel.py) admits peers that know the shared secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from fedsys.core.errors import FedsysError, InputError
from fedsys.distributed import network

if TYPE_CHECKING:
    from fedsys.distributed.tunnel import Gate, Passage

LOOPBACK = network.LOOPBACK


@dataclass
class Store:
    """A store as this process reaches it.

    Attributes:
        store: the store itself, or a client of it.
        port: where processes of this host reach it, on the loopback interface.
        tunnel: what leads to it from, or to, other hosts.
    """

    store: dist.TCPStore
    port: int
    tunnel: Gate | Passage | None = None

    def close(self) -> None:
        """Close the tunnel; the store goes with the last reference to it."""
        if self.tunnel is not None:
            self.tunnel.close()


def host(timeout: timedelta, port: int = 0) -> Store:
    """Host a store that only processes of this host reach."""
    try:
        listener = network.listen(LOOPBACK, port)
    except OSError as error:
        raise _in_use(LOOPBACK, port, error) from None
    chosen: int = listener.getsockname()[1]
    store = dist.TCPStore(
        LOOPBACK,
        chosen,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return Store(store, chosen)


def host_for_others(address: str, port: int, secret: bytes, timeout: timedelta) -> Store:
    """Host a store that other hosts reach at `address`:`port`, if they know the secret."""
    from fedsys.distributed.tunnel import Gate

    hosted = host(timeout)
    hosted.tunnel = Gate(address, port, hosted.port, secret)
    return hosted


def join(port: int, timeout: timedelta, address: str = LOOPBACK) -> Store:
    """Connect to a store of this host, or one without a gate."""
    return Store(dist.TCPStore(address, port, is_master=False, timeout=timeout), port)


def join_other(address: str, port: int, secret: bytes, timeout: timedelta) -> Store:
    """Connect to a store behind the gate of another host."""
    from fedsys.distributed.tunnel import Passage, wait_for_gate

    wait_for_gate(address, port, secret, timeout.total_seconds())
    passage = Passage(address, port, secret)
    joined = join(passage.port, timeout)
    joined.tunnel = passage
    return joined


def from_environment(
    rank: int, ranks: int, timeout: timedelta, environment: Mapping[str, str] = os.environ
) -> Store:
    """Return the store at MASTER_ADDR and MASTER_PORT, which the first rank hosts.

    A launcher that hosts it says so (TORCHELASTIC_USE_AGENT_STORE). torchrun's own listens on all
    interfaces and asks for no secret; fedsys.launch has none that does.
    """
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if not address or not port.isdigit():
        raise InputError(
            f"{ranks} ranks need MASTER_ADDR and MASTER_PORT to meet, "
            f"got {address!r} and {port!r}; start them with fedsys.launch, torchrun or srun"
        )
    try:
        if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return join(int(port), timeout, address)
        if is_one_host(ranks, environment):
            return host(timeout, int(port)) if rank == 0 else join(int(port), timeout)
        secret = network.read_secret(environment)
        if rank == 0:
            return _host_at(address, int(port), secret, timeout)
        return _join_at(address, int(port), secret, timeout, rank)
    except dist.DistError as error:
        line = str(error).strip().partition("\n")[0]
        raise FedsysError(
            f"rank {rank} cannot reach the others at {address}:{port} ({line})", reporter=rank
        ) from None


def _host_at(address: str, port: int, secret: bytes, timeout: timedelta) -> Store:
    where = network.meeting_address(address, network.own_address(None, address))
    try:
        return host_for_others(where, port, secret, timeout)
    except OSError as error:
        raise _in_use(where, port, error) from None


def _join_at(address: str, port: int, secret: bytes, timeout: timedelta, rank: int) -> Store:
    try:
        return join_other(address, port, secret, timeout)
    except FedsysError as error:
        raise type(error)(error.message, reporter=rank) from None


def is_one_host(ranks: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether all ranks are on this host, as far as the environment tells."""
    local = environment.get("LOCAL_WORLD_SIZE")
    if local is not None:
        return int(local) == ranks
    address = environment.get("MASTER_ADDR", "")
    return not address or network.is_loopback(network.resolve(address))


def _in_use(address: str, port: int, error: OSError) -> InputError:
    reason = (error.strerror or str(error)).lower()
    return InputError(f"the ranks cannot meet at {address}:{port} ({reason}); set MASTER_PORT")
