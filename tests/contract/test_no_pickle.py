"""Nothing that another rank sends is executed: messages are JSON, checked when they arrive."""

from __future__ import annotations

import ast
import json
import math
import os
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.processes import Ranks, connected, environments, forks, start_command

import fedsys
from fedsys.communication import LocalTransport
from fedsys.communication.values import (
    MAX_BYTES,
    boolean,
    decode,
    dict_of,
    encode,
    integer,
    list_of,
    optional,
    real,
    text,
)
from fedsys.core.errors import FedsysError
from fedsys.distributed.world import World

PACKAGE = Path(fedsys.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
CALLS = {
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
}
READERS = {"data"}
"""Folders that read public files in old formats; tests of the data sets cover what they accept."""


def names_in(tree: ast.AST) -> set[str]:
    """Every module that is imported and every name that is used, in one file."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").split(".")[0], *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
    return found


def test_the_package_neither_unpickles_nor_uses_object_collectives() -> None:
    files = [
        file
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.relative_to(PACKAGE).parts[0] not in READERS
    ]
    assert len(files) > 100
    used = {file.name: names_in(ast.parse(file.read_text())) for file in files}
    assert {name: found & (MODULES | CALLS) for name, found in used.items()} == {
        name: set() for name in used
    }


class Bomb:
    """Leave a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._trace),)


def rogue(environment: dict[str, str], trace: Path, survives: int) -> None:
    """Act as rank 1 until its message number `survives`, then send a pickle that runs code."""
    os.environ.update(environment)
    world = World.from_environment()
    if survives:
        world.connect("gloo", 20, 20)
        world.exchange_hosts()
    else:
        meeting = world.store.add("meetings of rank 1", 1)
        store = dist.PrefixStore(f"meeting {meeting}", world.store)
        wait = timedelta(seconds=20)
        dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=wait)
    bomb = pickle.dumps(Bomb(trace))
    lengths = [torch.zeros(1, dtype=torch.long) for _ in range(2)]
    dist.all_gather(lengths, torch.tensor([len(bomb)]))
    size = int(max(lengths))
    message = torch.zeros(size, dtype=torch.uint8)
    message[: len(bomb)] = torch.frombuffer(bytearray(bomb), dtype=torch.uint8)
    dist.all_gather([torch.zeros_like(message) for _ in range(2)], message)
    world.store.wait(["said 1"], timedelta(seconds=20))
    os._exit(0)


@pytest.mark.parametrize("survives", [0, 3])
def test_a_rank_that_sends_a_pickle_runs_no_code_and_is_named_in_one_line(
    tmp_path: Path, survives: int
) -> None:
    first, second = environments(2)
    printed, trace = tmp_path / "printed", tmp_path / "exploded"
    run = ("problem=quadratic_game", "algorithm=local_sgda", "rounds=5")
    honest = start_command(tmp_path, first, run, printed)
    attacker = forks().Process(target=rogue, args=(second, trace, survives))
    attacker.start()
    for process in (honest, attacker):
        process.join(60)
        process.kill()
        process.join()
    assert not trace.exists()
    assert honest.exitcode == 1
    (line,) = printed.read_text().splitlines()
    assert line.startswith("fedsys: rank 1 sent a message that is not the expected JSON (")


VALUES: list[Any] = [None, True, 0, -(2**63), 0.1, 1e-300, math.inf, "é\n", [], [[1], {"a": None}]]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_arrives_as_it_was_sent(value: Any) -> None:
    assert LocalTransport().all_gather_values(value, lambda one: one) == [value]


def exchange() -> list[Any]:
    with connected() as world:
        mine = None if world.rank == 0 else "x" * 10**world.rank
        return world.transport.all_gather_values(mine, optional(text))


def test_values_of_different_lengths_reach_every_rank_in_order(ranks: Ranks) -> None:
    assert ranks(3, exchange) == [[None, "x" * 10, "x" * 100]] * 3


FORGED: list[tuple[Any, Any]] = [
    (boolean, 1),
    (integer, True),
    (integer, 1.0),
    (real, "1"),
    (text, None),
    (text, "a\0b"),
    (list_of(real), {"0": 1.0}),
    (list_of(real), [1.0, None]),
    (dict_of(real), [["a", 1.0]]),
    (optional(text), 0),
]


@pytest.mark.parametrize(("parse", "value"), FORGED)
def test_a_value_of_another_type_is_refused_and_its_rank_named(parse: Any, value: Any) -> None:
    with pytest.raises(FedsysError, match="rank 3 sent a message") as caught:
        decode(json.dumps(value).encode(), parse, 3)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "message", [b"", b"\xff\xfe", b"nonsense", b"[" * 100_000, b"9" * 10_000, b'"a']
)
def test_a_message_that_is_not_json_is_refused(message: bytes) -> None:
    with pytest.raises(FedsysError, match="rank 0 sent a message") as caught:
        decode(message, list_of(integer), 0)
    assert caught.value.reporter == 1


def test_a_message_has_a_maximum_size() -> None:
    with pytest.raises(FedsysError, match=f"{MAX_BYTES} bytes at most"):
        encode("x" * MAX_BYTES)
