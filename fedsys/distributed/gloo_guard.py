"""Close gloo's listening sockets to all hosts but those of the run.

gloo accepts every connection as one of a peer. A kernel filter (BPF) on the sockets of this process
drops packets from hosts without a rank while the ranks connect, and all packets afterwards: by then
the ranks have all connections that they need.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import addressof, create_string_buffer

from fedsys.distributed import network, torch_internals

_SO_ATTACH_FILTER = 26
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SOURCE_ADDRESS = 0xFFF00000 + 12  # SKF_NET_OFF: an offset in the IP header
_ALL = 0x40000
_MAX_PEERS = 1000


@contextmanager
def guarded(peers: Sequence[str] | None) -> Iterator[None]:
    """Create process groups of gloo whose sockets only hosts with these addresses reach.

    Does nothing on a system without /proc or with an untested torch.

    Args:
        peers: IPv4 addresses; None admits every host that reaches the interface until the ranks
            are connected.
    """
    if not os.path.isdir("/proc/self/fd"):
        yield
        return
    names = os.environ.get(network.INTERFACES[0], "")
    interfaces = names.split(",") if names else []
    with torch_internals.gloo_devices_in(interfaces, lambda opens: _filtered(opens, peers)):
        yield


@contextmanager
def _filtered(open_sockets: Callable[[], None], peers: Sequence[str] | None) -> Iterator[None]:
    """Open sockets that accept the peers only, and no connection after the context."""
    before = {*_listeners()}
    open_sockets()
    own = [listener for inode, listener in _listeners().items() if inode not in before]
    if peers is not None and len(peers) <= _MAX_PEERS:
        _admit(own, peers)
    yield
    _admit(own, [])


def _listeners() -> dict[int, int]:
    """Return the listening sockets of this process: descriptors by inode."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found[status.st_ino] = int(name)
    return found


def _admit(listeners: Sequence[int], addresses: Sequence[str]) -> None:
    """Let the kernel drop all packets to these sockets except those from the addresses."""
    steps = [(_LOAD_WORD, 0, 0, _SOURCE_ADDRESS)]
    for address in addresses:
        (number,) = struct.unpack("!I", socket.inet_aton(address))
        steps += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALL)]
    steps.append((_RETURN, 0, 0, 0))
    program = create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    request = struct.pack("HL", len(steps), addressof(program))
    for listener in listeners:
        with suppress(OSError), socket.socket(fileno=os.dup(listener)) as one:
            one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, request)
