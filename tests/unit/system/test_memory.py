"""Blocks of memory that go round: what is in use is never handed out again, what is left is."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch

from fedsys.system.memory import recycled

ROWS = 2**18  # doubles, 2 MB
LIKE = torch.empty(0, dtype=torch.float64)


def test_a_block_that_is_left_is_used_again() -> None:
    first = recycled(LIKE, 4, ROWS // 4)
    place = first.data_ptr()
    del first
    assert recycled(LIKE, ROWS).data_ptr() == place


def test_a_block_in_use_is_not_reused_while_any_view_of_it_exists() -> None:
    views = [recycled(LIKE, 2, ROWS // 2)[1, 5:].expand(3, -1) for _ in range(4)]
    for number, view in enumerate(views):
        view[0].fill_(number)
    gc.collect()
    for _ in range(3):
        recycled(LIKE, ROWS).fill_(-1.0)
    for number, view in enumerate(views):
        assert bool((view == number).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_block_has_the_requested_dtype_and_shape(dtype: torch.dtype) -> None:
    block = recycled(torch.empty(0, dtype=dtype), 3, 500_001)
    assert block.dtype == dtype
    assert block.shape == (3, 500_001)
    assert block.is_contiguous()
    assert block.data_ptr() % 64 == 0
    assert block.untyped_storage().nbytes() == block.nbytes


def test_small_ones_are_left_to_torch_and_other_devices_too() -> None:
    assert recycled(LIKE, 3).shape == (3,)
    assert recycled(LIKE.to("meta"), ROWS).device.type == "meta"


PROGRAM = """
import torch
from fedsys.system.memory import recycled

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

like, kept = torch.empty(0), []
recycled(like, 2**22).fill_(0)
before = peak()
for step in range(200):
    kept = kept[-20:] + [torch.empty(1 + step * 997 % 50_000).fill_(0)]  # cuts into what is free
    block = recycled(like, 2**22).fill_(step)  # 16 MB
print(peak() - before)
"""


def test_blocks_take_no_more_memory_as_steps_go_by() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert float(found.stdout) < 2 * 16
