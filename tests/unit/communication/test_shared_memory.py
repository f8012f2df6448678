"""Shared memory: every collective gives the results of gloo."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from support.processes import Ranks, connected
from torch import Tensor

from fedsys.communication import DistributedTransport, Transport
from fedsys.communication.transport import choose_transport, shared_memory

SHAPES = ((1,), (3, 5), (40_000,), (2, 7, 11), (300_000,), (3,))
"""Some need larger areas than those before them."""


def messages(rank: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [
        torch.randint(0, 100, shape, generator=generator).to(dtype)
        / (3 if dtype.is_floating_point else 1)
        for shape in SHAPES
    ]


def collectives(transport: Transport, dtype: torch.dtype) -> dict[str, list[Tensor]]:
    """The result of each collective; repeated, because the halves of an area take turns."""
    found: dict[str, list[Tensor]] = {}
    for _ in range(5):
        for verb in ("all_reduce", "reduce", "broadcast"):
            found[verb] = [message.clone() for message in messages(transport.rank, dtype)]
            for message in found[verb]:
                getattr(transport, verb)(message)
    if transport.rank != 0:
        del found["reduce"]
    return found


def both_transports(dtype: torch.dtype) -> tuple[str, Any, Any, int]:
    with connected() as world:
        by_memory = collectives(world.transport, dtype)
        by_gloo = collectives(DistributedTransport(), dtype)
        number = world.transport.broadcast_int(5 + world.rank)
        return type(world.transport).__name__, by_memory, by_gloo, number


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_memory_and_gloo_agree_and_all_ranks_have_the_same_bits(
    ranks: Ranks, size: int, dtype: torch.dtype
) -> None:
    answers = ranks(size, both_transports, dtype)
    first = answers[0][1]["all_reduce"]
    expected = [sum(rows) for rows in zip(*(messages(r, dtype) for r in range(size)), strict=True)]
    for kind, by_memory, by_gloo, number in answers:
        assert kind == "SharedMemoryTransport"
        assert number == 5
        assert all(map(torch.equal, by_memory["all_reduce"], first))
        assert all(map(torch.allclose, by_memory["all_reduce"], expected))
        for verb, rows in by_memory.items():
            assert all(map(torch.allclose, rows, by_gloo[verb])), verb


def strided() -> tuple[Tensor, Tensor]:
    """Buffers that shared memory does not take: strided, and empty."""
    with connected() as world:
        columns = torch.full((4, 3), float(world.rank + 1)).t()
        empty = torch.zeros(0)
        for buffer in (columns, empty):
            world.transport.broadcast(buffer)
        return columns, empty


def test_buffers_that_do_not_fit_into_shared_memory_go_through_gloo(ranks: Ranks) -> None:
    for columns, empty in ranks(2, strided):
        assert torch.equal(columns, torch.ones(3, 4))
        assert empty.numel() == 0


def one_rank_is_isolated() -> tuple[str, float]:
    """As if rank 1 were in a container of its own."""

    def nothing(*_: object) -> None:
        raise FileNotFoundError

    before = shared_memory._open
    with connected() as world:
        if world.rank == 1:
            shared_memory._open = nothing  # type: ignore[assignment]
        try:
            transport = choose_transport(one_host=True)
        finally:
            shared_memory._open = before
        total = torch.tensor([1.0 + world.rank])
        transport.all_reduce(total)
        return type(transport).__name__, total.item()


def test_ranks_that_do_not_see_each_other_agree_on_gloo(ranks: Ranks) -> None:
    assert ranks(3, one_rank_is_isolated) == [("DistributedTransport", 6.0)] * 3


def test_a_process_of_another_host_is_detected() -> None:
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 4096)
    os.pwrite(descriptor, b"password", 0)
    assert shared_memory._open(os.getpid(), descriptor, "password", 4096)
    with pytest.raises(FileNotFoundError, match="another host"):
        shared_memory._open(os.getpid(), descriptor, "passw0rd", 4096)
    os.close(descriptor)


def without() -> str:
    with connected(shared_memory=False) as world:
        return type(world.transport).__name__


def test_shared_memory_can_be_turned_off(ranks: Ranks) -> None:
    assert ranks(2, without) == ["DistributedTransport"] * 2
