"""Exchanges between ranks of which one may have failed: its error is raised on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedsys.communication import Transport
from fedsys.communication.values import Parse, integer, optional, text
from fedsys.core.errors import FedsysError, InputError

Value = TypeVar("Value")


def exchange(
    transport: Transport, value: Any, parse: Parse[Value], failure: FedsysError | None = None
) -> list[Value]:
    """Return the value of every rank; if one of them failed instead, raise its error on all ranks.

    Args:
        transport: connects the ranks.
        value: a small value of this rank (JSON).
        parse: accepts the values that arrive.
        failure: the error of this rank, if it failed.
    """
    mine = None if failure is None else (failure.message, failure.exit_code)

    def parse_one(message: Any) -> tuple[tuple[str, int] | None, Value | None]:
        failed = optional(_parse_failure)(message["failure"])
        return failed, None if failed else parse(message["value"])

    found = transport.all_gather_values({"failure": mine, "value": value}, parse_one)
    for rank, (failed, _) in enumerate(found):
        if failed is not None:
            kind = InputError if failed[1] == InputError.exit_code else FedsysError
            error = kind(failed[0], reporter=rank)
            error.is_on_all_ranks = True
            raise error from failure
    return [value for _, value in found]  # type: ignore[misc]


def _parse_failure(value: Any) -> tuple[str, int]:
    message, exit_code = value
    return text(message), integer(exit_code)


class WorldPeers:
    """The exchanges of `fedsys.core.peers.Peers`, for work that runs in `World.on_all_ranks`."""

    def __init__(self, transport: Callable[[], Transport]) -> None:
        self._transport = transport

    def gather(self, value: Any, parse: Parse[Value]) -> list[Value]:
        """Return a small value of every rank (JSON), as `parse` accepts it, by rank."""
        return exchange(self._transport(), value, parse)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the ranks, in float64."""
        self.gather(None, lambda value: None)  # a rank that has failed is not in the next exchange
        buffer = values.detach().to(device="cpu", dtype=torch.float64, copy=True).contiguous()
        self._transport().all_reduce(buffer)
        return buffer.to(values.device)
