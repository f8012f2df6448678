"""The wire through the memory of a host: the same answers as gloo's, whatever passes through it."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from processes import Ranks, connected
from torch import Tensor

from fedsys.communication import DistributedTransport, Transport, host_memory

SHAPES = ((1,), (3, 5), (40_000,), (2, 7, 11), (300_000,), (3,))
"""Some need larger areas than the ones before."""


def messages(rank: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [
        torch.randint(0, 100, shape, generator=generator).to(dtype)
        / (3 if dtype.is_floating_point else 1)
        for shape in SHAPES
    ]


def collectives(transport: Transport, dtype: torch.dtype) -> dict[str, list[Tensor]]:
    """What each verb makes of each message; five times, as the halves of an area take turns."""
    found: dict[str, list[Tensor]] = {}
    for _ in range(5):
        for verb in ("all_reduce", "reduce", "broadcast"):
            found[verb] = [message.clone() for message in messages(transport.rank, dtype)]
            for message in found[verb]:
                getattr(transport, verb)(message)
    if transport.rank != 0:
        del found["reduce"]
    return found


def both_wires(dtype: torch.dtype) -> tuple[str, Any, Any, int]:
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
    answers = ranks(size, both_wires, dtype)
    first = answers[0][1]["all_reduce"]
    expected = [sum(rows) for rows in zip(*(messages(r, dtype) for r in range(size)), strict=True)]
    for kind, by_memory, by_gloo, number in answers:
        assert kind == "HostTransport"
        assert number == 5
        assert all(map(torch.equal, by_memory["all_reduce"], first))
        assert all(map(torch.allclose, by_memory["all_reduce"], expected))
        for verb, rows in by_memory.items():
            assert all(map(torch.allclose, rows, by_gloo[verb])), verb


def strided() -> tuple[Tensor, Tensor]:
    """Buffers that the areas do not take: empty, and in the order of columns."""
    with connected() as world:
        columns = torch.full((4, 3), float(world.rank + 1)).t()
        empty = torch.zeros(0)
        for buffer in (columns, empty):
            world.transport.broadcast(buffer)
        return columns, empty


def test_what_the_areas_do_not_take_goes_by_gloo(ranks: Ranks) -> None:
    for columns, empty in ranks(2, strided):
        assert torch.equal(columns, torch.ones(3, 4))
        assert empty.numel() == 0


def one_sees_nothing() -> tuple[str, float]:
    """As if rank 1 were in a container of its own."""

    def nothing(*_: object) -> None:
        raise FileNotFoundError

    before = host_memory._open
    with connected() as world:
        if world.rank == 1:
            host_memory._open = nothing  # type: ignore[assignment]
        try:
            transport = host_memory.wire(one_host=True)
        finally:
            host_memory._open = before
        total = torch.tensor([1.0 + world.rank])
        transport.all_reduce(total)
        return type(transport).__name__, total.item()


def test_ranks_that_do_not_see_each_other_agree_on_gloo(ranks: Ranks) -> None:
    assert ranks(3, one_sees_nothing) == [("DistributedTransport", 6.0)] * 3


def test_a_process_of_another_host_is_recognised() -> None:
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 4096)
    os.pwrite(descriptor, b"password", 0)
    assert host_memory._open(os.getpid(), descriptor, b"password", 4096)
    with pytest.raises(FileNotFoundError, match="another host"):
        host_memory._open(os.getpid(), descriptor, b"passw0rd", 4096)
    os.close(descriptor)


def without() -> str:
    with connected(shared_memory=False) as world:
        return type(world.transport).__name__


def test_shared_memory_can_be_turned_off(ranks: Ranks) -> None:
    assert ranks(2, without) == ["DistributedTransport"] * 2
