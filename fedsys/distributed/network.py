"""Addresses and interfaces of this host, and the secret that the hosts of a run share."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsys.core.errors import InputError

LOOPBACK = "127.0.0.1"
SECRET, SECRET_FILE = "FEDSYS_SECRET", "FEDSYS_SECRET_FILE"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SHORTEST_SECRET = 16
_SIOCGIFADDR = 0x8915
_ADVICE = (
    "run 'umask 077; openssl rand -hex 32 > fedsys.key' once "
    f"and set {SECRET_FILE} to a copy of that file on every host"
)


def read_secret(environment: Mapping[str, str] = os.environ) -> bytes:
    """Return the shared secret from FEDSYS_SECRET or the file that FEDSYS_SECRET_FILE names."""
    secret = environment.get(SECRET, "").strip().encode()
    if not secret and environment.get(SECRET_FILE):
        secret = _read(Path(environment[SECRET_FILE]))
    if not secret:
        raise InputError(f"a run on several hosts needs a shared secret: {_ADVICE}")
    if len(secret) < _SHORTEST_SECRET:
        raise InputError(
            f"the shared secret must have at least {_SHORTEST_SECRET} characters, "
            f"got {len(secret)}: {_ADVICE}"
        )
    return secret


def _read(file: Path) -> bytes:
    try:
        content = file.read_bytes().strip()
        if file.stat().st_mode & 0o007:
            raise InputError(f"{SECRET_FILE}={file} is open to every user; run chmod 600 {file}")
    except OSError as error:
        raise InputError(f"{SECRET_FILE}={file} cannot be read: {error.strerror}") from None
    return content


def resolve(host: str) -> str:
    """Return the address of a host, IPv4 if it has one."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"the host name {host} cannot be resolved: {error.strerror}") from None
    families = sorted(found, key=lambda one: one[0] != socket.AF_INET)
    return str(families[0][4][0])


def is_loopback(address: str) -> bool:
    """Whether only processes of this host reach an address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface of this host."""
    import fcntl

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode()[:15])
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    except OSError:
        known = ", ".join(name for _, name in socket.if_nameindex())
        raise InputError(
            f"IFNAME must be an interface of this host with an IPv4 address ({known}), "
            f"got {interface!r}"
        ) from None
    return socket.inet_ntoa(answer[20:24])


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has an IPv4 address, if there is one."""
    for _, name in socket.if_nameindex():
        with suppress(InputError):
            if address_of(name) == address:
                return name
    return None


def own_addresses() -> list[str]:
    """Return all IPv4 addresses of this host, one of each interface."""
    found = []
    for _, name in socket.if_nameindex():
        with suppress(InputError):
            found.append(address_of(name))
    return found


def address_towards(host: str) -> str:
    """Return the address of this host on the network by which it reaches another."""
    there = resolve(host)
    family = socket.AF_INET6 if ":" in there else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # which sends nothing
            probe.connect((there, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InputError(f"this host has no route to {host}: {error.strerror}") from None


def own_address(given: str | None, meeting_host: str) -> str:
    """Return the one address of this host that the others of a run see.

    It is the one `given`, else that of the interface in GLOO_SOCKET_IFNAME, else the one by which
    this host reaches the host where they meet. It is never "all interfaces".
    """
    if given:
        address = resolve(given)
    elif os.environ.get(INTERFACES[0]):
        address = address_of(os.environ[INTERFACES[0]])
    else:
        address = address_towards(meeting_host)
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        raise InputError(f"LOCAL_ADDR must be one address of this host, got {given!r}")
    return address


def meeting_address(host: str, own: str) -> str:
    """Return the address at which the host `host`, which is this one, waits for the others.

    On many hosts the own name is an address of the loopback interface, which others do not reach.
    """
    address = resolve(host)
    if is_loopback(address) and host != "localhost" and host != address:
        address = own
    if is_loopback(address) and host != "localhost" and host != address:
        raise InputError(
            f"{host} is {address} on this host, which others cannot reach; set IFNAME or LOCAL_ADDR"
        )
    return address


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens on one address; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # The connections of a run that has ended keep its port for a minute otherwise.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


@contextmanager
def restricted_to(address: str | None) -> Iterator[None]:
    """Let gloo and nccl listen on the interface of an address only, unless the user chose one."""
    name = interface_of(address) if address else None
    added = [one for one in INTERFACES if name and not os.environ.get(one)]
    try:
        os.environ.update(dict.fromkeys(added, name or ""))
        yield
    finally:
        for one in added:
            del os.environ[one]
