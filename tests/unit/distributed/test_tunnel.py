"""The tunnel between hosts: only processes that know the secret reach the store."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch.distributed as dist

from fedsys.core.errors import FedsysError, InputError
from fedsys.distributed import stores, tunnel
from fedsys.distributed.network import LOOPBACK
from fedsys.distributed.tunnel import Gate, Passage, wait_for_gate

SECRET = b"0123456789abcdef"
TIMEOUT = timedelta(seconds=20)


@dataclass
class Site:
    """A store, its gate, and a client that came through the gate."""

    hosted: stores.Store
    gate: Gate
    client: dist.TCPStore


@pytest.fixture
def site() -> Iterator[Site]:
    hosted = stores.host_for_others(LOOPBACK, 0, SECRET, TIMEOUT)
    gate = hosted.tunnel
    assert isinstance(gate, Gate)
    joined = stores.join_other(LOOPBACK, gate.port, SECRET, TIMEOUT)
    yield Site(hosted, gate, joined.store)
    joined.close()
    hosted.close()


def knock(port: int) -> socket.socket:
    return socket.create_connection((LOOPBACK, port), timeout=10)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end closes the connection within 10 seconds."""
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def test_every_operation_of_a_store_works_through_the_tunnel(site: Site) -> None:
    large = "x" * 3_000_000
    site.client.set("large", large)
    assert site.hosted.store.get("large") == large.encode()
    assert site.client.add("count", 5) == 5
    assert site.client.compare_set("new", "", "first") == b"first"
    assert site.client.check(["new"])
    second = site.client.clone()
    site.hosted.store.set("late", "yes")
    second.wait(["late"], timedelta(seconds=10))
    assert second.delete_key("late")


def test_a_lost_gate_is_a_lost_store(site: Site) -> None:
    site.hosted.close()
    with pytest.raises(dist.DistNetworkError):
        site.client.get("anything")


GARBAGE = [
    b"",
    b"\0",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x03\x00\x00\x00" * 40,
    bytes(64),
    bytes(10_000),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=len)
def test_a_process_without_the_secret_reads_and_writes_nothing(site: Site, garbage: bytes) -> None:
    site.client.set("key", "private value")
    with knock(site.gate.port) as stranger:
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        heard = b""
        with suppress(ConnectionError):
            while part := stranger.recv(4096):
                heard += part
    assert len(heard) in (0, 40)  # a greeting and a nonce at most
    assert site.client.get("key") == b"private value"


def test_a_plain_store_client_does_not_get_through_the_gate(site: Site) -> None:
    before = site.hosted.store.num_keys()
    with pytest.raises(dist.DistError):
        dist.TCPStore(LOOPBACK, site.gate.port, is_master=False, timeout=timedelta(seconds=1))
    assert site.hosted.store.num_keys() == before


def test_a_host_with_another_secret_gets_a_one_line_error(site: Site) -> None:
    with pytest.raises(InputError, match="does not have the secret of this host") as caught:
        wait_for_gate(LOOPBACK, site.gate.port, b"another secret ..", 10)
    assert "\n" not in caught.value.message


def test_a_gate_without_the_secret_receives_no_data(site: Site) -> None:
    rogue = Gate(LOOPBACK, 0, site.hosted.port, b"another secret ..")
    passage = Passage(LOOPBACK, rogue.port, SECRET)
    with pytest.raises(dist.DistError):
        dist.TCPStore(LOOPBACK, passage.port, is_master=False, timeout=timedelta(seconds=1))
    assert rogue.visitors == 0
    passage.close()
    rogue.close()


def recorded_session(site: Site, sent: bytes) -> bytes:
    """What a visitor with the secret sends to the gate, from the first byte on."""
    written: list[bytes] = []

    async def visit() -> None:
        (_, writer), (key, _) = await tunnel._enter(LOOPBACK, relay.getsockname()[1], SECRET)
        tag = tunnel._sign(key, (0).to_bytes(8, "big"), sent)
        writer.write(len(sent).to_bytes(4, "big") + tag + sent)
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.close()

    async def serve() -> None:
        async def pipe(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: bool
        ) -> None:
            while part := await reader.read(4096):
                if log:
                    written.append(part)
                writer.write(part)

        async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection(LOOPBACK, site.gate.port)
            await asyncio.gather(pipe(reader, there[1], True), pipe(there[0], writer, False))

        server = await asyncio.start_server(admit, sock=relay)
        await visit()
        server.close()

    relay = socket.create_server((LOOPBACK, 0))
    asyncio.run(serve())
    return b"".join(written)


def test_a_session_that_was_listened_to_cannot_be_played_again(site: Site) -> None:
    record = recorded_session(site, b"\x00")
    assert len(record) == 64 + 4 + 32 + 1
    with knock(site.gate.port) as stranger:
        stranger.sendall(record)
        assert is_closed(stranger)


@pytest.mark.parametrize("change", ["payload", "tag", "length", "again"])
def test_a_frame_that_was_changed_or_repeated_closes_the_connection(
    site: Site, change: str
) -> None:
    async def attack() -> bytes:
        (reader, writer), (key, _) = await tunnel._enter(LOOPBACK, site.gate.port, SECRET)
        payload = b"\x00"
        tag = tunnel._sign(key, (0).to_bytes(8, "big"), payload)
        frame = bytearray((1).to_bytes(4, "big") + tag + payload)
        if change == "again":
            frame = frame * 2
        else:
            frame[{"payload": -1, "tag": 10, "length": 0}[change]] ^= 1
        writer.write(frame)
        return await asyncio.wait_for(reader.read(), 10)

    assert asyncio.run(attack()) == b""
    assert site.client.add("still here", 1) == 1


def test_hundreds_of_silent_connections_do_not_block_a_peer(site: Site) -> None:
    strangers = [knock(site.gate.port) for _ in range(300)]
    try:
        started = time.monotonic()
        other = stores.join_other(LOOPBACK, site.gate.port, SECRET, TIMEOUT)
        other.store.set("key", "value")
        assert site.client.get("key") == b"value"
        assert time.monotonic() - started < 10
        other.close()
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_silent_connection_is_closed_after_a_timeout(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "_SECONDS_TO_PROVE", 0.2)
    with knock(site.gate.port) as stranger:
        assert is_closed(stranger)


def test_an_unreachable_gate_is_named_with_advice() -> None:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    with pytest.raises(FedsysError, match=f"{LOOPBACK}:{port}, where the hosts meet"):
        wait_for_gate(LOOPBACK, port, SECRET, 0.3)
