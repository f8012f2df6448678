"""An authenticated tunnel to a TCPStore, which itself accepts every connection.

A store listens on the loopback interface of its host. A `Gate` beside it listens on the network,
lets in those that know the secret and forwards their bytes to the store. On the other hosts a
`Passage` listens on the loopback interface and forwards every connection to the gate.

    store client -> 127.0.0.1 Passage ==== network ==== Gate -> 127.0.0.1 store

Both ends prove that they know the secret by an HMAC of two fresh nonces, one from each, before
anything else is sent. Every frame after that has an HMAC with a key of its connection and
direction, and its number: added, changed, repeated and reordered frames are detected. Frames are
not encrypted.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fedsys.core.errors import FedsysError, InputError
from fedsys.distributed.network import LOOPBACK, listen

_GREETING = b"fedsys 1"
_NONCE = _TAG = 32
_MAX_FRAME = 2**16
_BACKLOG = 1024
_MAX_PENDING = 256
"""Connections that have not proved anything yet; beyond it, the oldest is closed."""
_SECONDS_TO_PROVE = 10.0
_SECONDS_TO_CONNECT = 10.0
_KEEPALIVE = {"TCP_KEEPIDLE": 120, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 10}
_BROKEN = (OSError, EOFError, asyncio.TimeoutError)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class WrongSecretError(Exception):
    """The other end does not know the secret of this one."""


class Gate:
    """Forward authenticated connections from `address`:`port` to a store on the loopback interface.

    Attributes:
        port: where it listens; given, or chosen by the kernel for 0.
        visitors: how many authenticated connections are open.
    """

    def __init__(self, address: str, port: int, store_port: int, secret: bytes) -> None:
        self._store_port, self._secret = store_port, secret
        self._pending: dict[asyncio.Task[None], None] = {}
        self.visitors = 0
        self._listener = _Listener(address, port, self._admit)
        self.port = self._listener.port

    def close(self) -> None:
        """Stop to listen, and close all connections."""
        self._listener.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._pending) >= _MAX_PENDING:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.cancel()
        self._pending[task] = None
        try:
            async with asyncio.timeout(_SECONDS_TO_PROVE):
                keys = await _prove_as_gate(reader, writer, self._secret)
        finally:
            self._pending.pop(task, None)
        self.visitors += 1
        try:
            store = await asyncio.open_connection(LOOPBACK, self._store_port)
            await _forward((reader, writer), store, *keys)
        finally:
            self.visitors -= 1


class Passage:
    """Forward connections from a port of the loopback interface to a gate on another host.

    Attributes:
        port: where it listens.
    """

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        self._gate, self._secret = (host, port), secret
        self._listener = _Listener(LOOPBACK, 0, self._pass)
        self.port = self._listener.port

    def close(self) -> None:
        """Stop to listen, and close all connections."""
        self._listener.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_SECONDS_TO_CONNECT):
            gate, keys = await _enter(*self._gate, self._secret)
        await _forward(gate, (reader, writer), *keys)


def wait_for_gate(host: str, port: int, secret: bytes, patience: float) -> None:
    """Return when the gate is open and knows the same secret; at most `patience` seconds."""
    deadline = time.monotonic() + patience
    denials = 0
    while True:
        try:
            asyncio.run(_knock(host, port, secret))
            return
        except WrongSecretError:
            denials += 1  # a gate under attack may close a good connection, too
            if denials == 3:
                raise InputError(
                    f"{host}:{port} does not have the secret of this host; "
                    "give all hosts the same FEDSYS_SECRET or FEDSYS_SECRET_FILE"
                ) from None
        except _BROKEN as error:
            if time.monotonic() > deadline:
                reason = getattr(error, "strerror", None) or type(error).__name__
                raise FedsysError(
                    f"{host}:{port}, where the hosts meet, cannot be reached ({reason}); "
                    "start all hosts with the same address and port"
                ) from None
        time.sleep(0.1)


async def _knock(host: str, port: int, secret: bytes) -> None:
    async with asyncio.timeout(_SECONDS_TO_CONNECT):
        (_, writer), _ = await _enter(host, port, secret)
    writer.close()


async def _enter(host: str, port: int, secret: bytes) -> tuple[Streams, tuple[bytes, bytes]]:
    """Connect to a gate; the streams, and the keys to send and to receive with."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        _keep_alive(writer)
        greeting = await reader.readexactly(len(_GREETING) + _NONCE)
        if not greeting.startswith(_GREETING):
            raise ConnectionError(f"{host}:{port} is not a gate of fedsys")
        nonces = greeting[len(_GREETING) :] + (mine := secrets.token_bytes(_NONCE))
        writer.write(mine + _sign(secret, b"visitor", nonces))
        try:
            proof = await reader.readexactly(_TAG)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WrongSecretError from None
        if not hmac.compare_digest(proof, _sign(secret, b"gate", nonces)):
            raise WrongSecretError
    except BaseException:
        writer.close()
        raise
    keys = _sign(secret, b"to gate", nonces), _sign(secret, b"to visitor", nonces)
    return (reader, writer), keys


async def _prove_as_gate(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
) -> tuple[bytes, bytes]:
    """Check the visitor's proof, then give our own; the keys to send and to receive with."""
    mine = secrets.token_bytes(_NONCE)
    writer.write(_GREETING + mine)
    nonces = mine + await reader.readexactly(_NONCE)
    proof = await reader.readexactly(_TAG)
    if not hmac.compare_digest(proof, _sign(secret, b"visitor", nonces)):
        raise ConnectionError("a visitor without the secret")
    writer.write(_sign(secret, b"gate", nonces))
    return _sign(secret, b"to visitor", nonces), _sign(secret, b"to gate", nonces)


def _sign(key: bytes, role: bytes, message: bytes) -> bytes:
    return hmac.digest(key, role + b"\0" + message, "sha256")


async def _forward(network: Streams, local: Streams, send_key: bytes, receive_key: bytes) -> None:
    """Forward until either side ends: frames on the network, plain bytes on this host."""
    ways = [
        asyncio.ensure_future(_to_network(local[0], network[1], send_key)),
        asyncio.ensure_future(_from_network(network[0], local[1], receive_key)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for _, writer in (network, local):
            writer.close()


async def _to_network(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, key: bytes
) -> None:
    number = 0
    while payload := await source.read(_MAX_FRAME):
        tag = _sign(key, number.to_bytes(8, "big"), payload)
        target.write(len(payload).to_bytes(4, "big") + tag + payload)
        await target.drain()
        number += 1


async def _from_network(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, key: bytes
) -> None:
    number = 0
    while True:
        size = int.from_bytes(await source.readexactly(4), "big")
        if not 0 < size <= _MAX_FRAME:
            raise ConnectionError(f"a frame of {size} bytes")
        tag = await source.readexactly(_TAG)
        payload = await source.readexactly(size)
        if not hmac.compare_digest(tag, _sign(key, number.to_bytes(8, "big"), payload)):
            raise ConnectionError("a frame with a wrong signature")
        target.write(payload)
        await target.drain()
        number += 1


class _Listener:
    """A listening socket whose connections are handled by a thread of this process."""

    def __init__(
        self,
        address: str,
        port: int,
        handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    ) -> None:
        self._handle = handle
        self._socket = listen(address, port)
        self.port: int = self._socket.getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fedsys tunnel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop to listen, and close all connections."""
        with suppress(RuntimeError):  # it was closed before
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(
                self._serve, sock=self._socket, limit=2 * _MAX_FRAME, backlog=_BACKLOG
            )
        )
        self._loop.run_forever()
        server.close()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            _keep_alive(writer)
            await self._handle(reader, writer)
        except (*_BROKEN, WrongSecretError, asyncio.CancelledError):
            pass  # the store's client at the other end sees a closed connection, and retries
        finally:
            self._tasks.discard(task)
            writer.close()


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Notice hosts that are gone although nothing is sent."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
