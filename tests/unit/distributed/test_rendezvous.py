"""How launchers and ranks meet: without pickles, without open ports, and with a secret."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import run as torchrun
from torch.distributed.elastic.rendezvous import RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousSettings,
    RendezvousTimeout,
    _NodeDesc,
    _RendezvousState,
)

from fedsys.cli.jobs import PicklableJob
from fedsys.core.errors import InputError
from fedsys.distributed import network, stores
from fedsys.distributed.network import LOOPBACK, SECRET, SECRET_FILE, read_secret
from fedsys.distributed.rendezvous import secure
from fedsys.distributed.rendezvous_state import decode_state, encode_state
from fedsys.distributed.torch_internals import state_holder

SETTINGS = RendezvousSettings("run", 1, 2, RendezvousTimeout(), timedelta(seconds=5), 3)


def example() -> _RendezvousState:
    one, two, three = (_NodeDesc(f"10.0.0.{n}", 100 + n, n) for n in range(3))
    state = _RendezvousState()
    state.round, state.complete = 4, True
    state.deadline = now = datetime.now(UTC)
    state.participants, state.wait_list, state.redundancy_list = {one: 0, two: 1}, {three}, {two}
    state.last_heartbeats = {one: now, two: now - timedelta(seconds=1.25)}
    return state


def test_the_state_of_a_rendezvous_survives_its_way_through_the_store() -> None:
    for state in (example(), _RendezvousState()):
        decoded = _RendezvousState()
        decode_state(encode_state(state).encode(), decoded, _NodeDesc)
        assert vars(decoded) == vars(state)


class Bomb:
    """Leave a trace when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


FORGED = [
    pickle.dumps(Bomb()),
    pickle.dumps(_RendezvousState()),
    b"",
    b"[]",
    b"{}",
    b"\xff",
    encode_state(_RendezvousState()).replace("false", "0").encode(),
    encode_state(_RendezvousState()).replace("[]", '[["a"]]').encode(),
    encode_state(_RendezvousState()).replace("null", "1e400").encode(),
    b" " * 2_000_000,
]


@pytest.mark.parametrize("forged", FORGED, ids=range(len(FORGED)))
def test_a_forged_state_is_refused_and_runs_no_code(
    forged: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = dist.HashStore()
    holder = state_holder(store, SETTINGS)
    store.set(f"fedsys.rendezvous.{SETTINGS.run_id}", forged.decode("latin-1"))
    with pytest.raises(RendezvousStateError):
        holder.sync()
    assert not list(tmp_path.iterdir())


def test_of_two_concurrent_writes_one_fails_and_returns_the_other_value() -> None:
    store = dist.HashStore()
    first, second = state_holder(store, SETTINGS), state_holder(store, SETTINGS)
    assert first.sync() is None
    assert second.sync() is None
    for holder, number in ((first, 5), (second, 7)):
        holder.state.round = number
        holder.mark_dirty()
    assert first.sync() is True
    assert second.sync() is False
    assert second.state.round == 5


def test_a_store_listens_on_the_loopback_interface_only() -> None:
    hosted = stores.host(timedelta(seconds=5))
    addresses = {listening for listening, port in listeners(os.getpid()) if port == hosted.port}
    assert addresses == {LOOPBACK}


def listeners(pid: int) -> set[tuple[str, int]]:
    """Address and port of everything that a process listens on, by IPv4."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    found = set()
    for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = row.split()
        if fields[3] == "0A" and fields[9] in inodes:
            address, port = fields[1].split(":")
            found.add((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
    return found


def test_several_hosts_without_a_secret_are_refused_in_one_line() -> None:
    hosts = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29411")
    done = subprocess.run(
        [sys.executable, "-m", "fedsys.launch", "--nproc-per-node=1", *hosts, "--"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("fedsys: a run on several hosts needs a shared secret: run ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--node-rank=0", "--master-addr=127.0.0.1", "--master-port=29411"), "shared secret"),
        (("--rdzv-backend=etcd-v2",), "--rdzv-backend must be c10d or static, got 'etcd-v2'"),
    ],
    ids=["static", "etcd"],
)
def test_no_rendezvous_of_several_hosts_is_unprotected(
    options: tuple[str, ...], reason: str
) -> None:
    args = torchrun.parse_args(["--nnodes=2", *options, "-m", "fedsys"])
    with pytest.raises(InputError, match=reason):
        secure(args)


def test_ranks_of_several_hosts_without_a_launcher_need_a_secret_too() -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29411", "LOCAL_WORLD_SIZE": "1"}
    with pytest.raises(InputError, match="shared secret"):
        stores.from_environment(0, 2, timedelta(seconds=1), place)


def test_a_secret_comes_from_the_environment_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    assert read_secret({SECRET_FILE: str(file)}) == b"0123456789abcdef"
    assert read_secret({SECRET: "fedcba9876543210", SECRET_FILE: str(file)}) == b"fedcba9876543210"


def test_a_secret_that_is_short_or_open_or_absent_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_secret({SECRET_FILE: str(file)})
    file.write_text("0123456789abcdef")
    file.chmod(0o644)
    with pytest.raises(InputError, match=f"chmod 600 {file}"):
        read_secret({SECRET_FILE: str(file)})
    with pytest.raises(InputError, match="at least 16 characters, got 5"):
        read_secret({SECRET: "short"})
    with pytest.raises(InputError, match="openssl rand"):
        read_secret({})


def test_the_address_of_a_host_is_never_all_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    for everything in ("0.0.0.0", "::"):
        with pytest.raises(InputError, match="LOCAL_ADDR must be one address"):
            network.own_address(everything, LOOPBACK)
    assert network.own_address(None, LOOPBACK) == LOOPBACK
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nonsense7")
    with pytest.raises(InputError, match="IFNAME must be an interface of this host"):
        network.own_address(None, LOOPBACK)


def test_a_port_that_is_taken_is_named_in_one_line() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = str(taken.getsockname()[1])
        place = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": port, "LOCAL_WORLD_SIZE": "2"}
        with pytest.raises(InputError, match=f"cannot meet at {LOOPBACK}:{port}"):
            stores.from_environment(0, 2, timedelta(seconds=1), place)


def test_the_jobs_of_a_sweep_get_a_secret_by_their_environment_and_not_by_their_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SECRET, "")  # restored afterwards
    monkeypatch.delenv(SECRET)
    monkeypatch.delenv(SECRET_FILE, raising=False)
    written = pickle.dumps(PicklableJob(lambda settings: None))
    secret = read_secret()
    assert len(secret) == 64
    assert secret not in written
    pickle.dumps(PicklableJob(lambda settings: None))
    assert read_secret() == secret
