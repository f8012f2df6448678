"""The state of a rendezvous of launchers as JSON; torchrun would keep a pickle in the store.

A state and its nodes are objects of torch (_RendezvousState and _NodeDesc of its dynamic
rendezvous); this module uses their public attributes only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import torch.distributed as dist

from fedsys.communication.values import boolean, integer, list_of, optional, real, text

_EMPTY = "empty"
_MAX_BYTES = 2**20


class SharedState:
    """The state in one key of the store that all launchers share.

    Args:
        store: the store.
        run_id: name of the run, which is part of the key.

    Raises:
        ConnectionError: the store does not answer; also raised by `exchange`.
    """

    def __init__(self, store: dist.Store, run_id: str) -> None:
        self._store, self._key = store, f"fedsys.rendezvous.{run_id}"
        # Reading an absent key would block.
        self._call("compare_set", "", _EMPTY)

    def exchange(self, mine: str | None, before: bytes | None) -> bytes | None:
        """Write a state unless another launcher has written one; return the state in the store.

        Args:
            mine: the state to write; None only reads.
            before: the state that the store had last time; None if it had none.
        """
        if mine is None:
            found = self._call("get")
        else:
            expected = _EMPTY if before is None else before.decode()
            found = self._call("compare_set", expected, mine)
        return None if found == _EMPTY.encode() else found

    def _call(self, verb: str, *arguments: str) -> bytes:
        try:
            return bytes(getattr(self._store, verb)(self._key, *arguments))
        except (ValueError, RuntimeError, TimeoutError) as error:
            raise ConnectionError(
                "the connection to the store of the rendezvous has failed"
            ) from error


def encode_state(state: Any) -> str:
    """Return the state as JSON; times are seconds since 1970."""
    return json.dumps(
        {
            "round": state.round,
            "complete": state.complete,
            "deadline": state.deadline and state.deadline.timestamp(),
            "closed": state.closed,
            "participants": [[_node(node), rank] for node, rank in state.participants.items()],
            "wait_list": [_node(node) for node in sorted(state.wait_list)],
            "redundancy_list": [_node(node) for node in sorted(state.redundancy_list)],
            "last_heartbeats": [
                [_node(node), time.timestamp()] for node, time in state.last_heartbeats.items()
            ],
        }
    )


def decode_state(message: bytes, state: Any, make_node: Callable[[str, int, int], Any]) -> None:
    """Read the state that a launcher wrote.

    Args:
        message: content of the store.
        state: empty state, which is filled.
        make_node: makes a node of an address, a process id and a number on its host.

    Raises:
        ValueError: the message is not the JSON of a state.
    """

    def node(value: Any) -> Any:
        address, process, number = value
        return make_node(text(address), integer(process), integer(number))

    try:
        if len(message) > _MAX_BYTES:
            raise ValueError(f"{len(message)} bytes")
        found = json.loads(message.decode())
        state.round = integer(found["round"])
        state.complete = boolean(found["complete"])
        state.deadline = optional(_parse_time)(found["deadline"])
        state.closed = boolean(found["closed"])
        state.participants = {node(one): integer(rank) for one, rank in found["participants"]}
        state.wait_list = {*list_of(node)(found["wait_list"])}
        state.redundancy_list = {*list_of(node)(found["redundancy_list"])}
        beats = found["last_heartbeats"]
        state.last_heartbeats = {node(one): _parse_time(time) for one, time in beats}
    except (TypeError, ValueError, KeyError, OverflowError, OSError, RecursionError) as error:
        raise ValueError(f"the state of the rendezvous is damaged ({error})") from None


def _node(node: Any) -> list[object]:
    return [node.addr, node.pid, node.local_id]


def _parse_time(value: Any) -> datetime:
    return datetime.fromtimestamp(real(value), UTC)
