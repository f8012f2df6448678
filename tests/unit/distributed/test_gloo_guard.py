"""gloo's listening sockets: on the loopback interface of one host, and closed to strangers."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from support.processes import Ranks, connected
from test_rendezvous import listeners

from fedsys.distributed import gloo_guard
from fedsys.distributed.network import LOOPBACK

OTHER = "127.0.0.2"


def reaches(place: tuple[str, int], source: str = LOOPBACK) -> bool:
    """Whether a process at the source gets a connection within half a second."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        probe.bind((source, 0))
        return probe.connect_ex(place) == 0


def open_sockets() -> list[tuple[str, bool]]:
    before = listeners(os.getpid())
    with connected() as world:
        world.exchange_hosts()
        found = listeners(os.getpid()) - before
        return [(address, reaches((address, port))) for address, port in found]


def test_ranks_of_one_host_listen_on_the_loopback_interface_and_refuse_other_connections(
    ranks: Ranks,
) -> None:
    assert ranks(3, open_sockets) == [[(LOOPBACK, False)]] * 3


def test_only_the_hosts_of_the_run_get_a_connection() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        place = server.getsockname()
        assert reaches(place, OTHER)
        gloo_guard._admit([server.fileno()], ["10.9.8.7", LOOPBACK])
        assert reaches(place)
        assert not reaches(place, OTHER)
        gloo_guard._admit([server.fileno()], [])
        assert not reaches(place)


def meet_again() -> list[float]:
    """Two process groups, one after the other; their sums."""
    sums = []
    for _ in range(2):
        with connected() as world:
            sums.append(world.transport.broadcast_int(7 + world.rank))
    return sums


def test_ranks_meet_again_after_their_sockets_were_closed(ranks: Ranks) -> None:
    assert ranks(2, meet_again) == [[7, 7]] * 2


def test_the_environment_is_as_before_when_the_ranks_have_met(ranks: Ranks) -> None:
    (first, second) = ranks(2, variables)
    assert first == second == []


def variables() -> list[str]:
    with connected():
        pass
    mine = Path("/proc/self/environ").read_bytes()
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return [name for name in names if name in os.environ and name.encode() not in mine]
