"""The arithmetic of steps: fewer passes over memory, and the bits of the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedsys.core.arithmetic import add_scaled, descend

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def points(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (values * 10 ** (4 * torch.randn((), generator=generator).item())).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (20, 40), (5, 67)])
def test_a_gradient_step_has_the_bits_of_the_formula(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    for seed in range(20):
        x, direction = points(shape, dtype, seed), points(shape, dtype, seed + 100)
        shared = x[:1].expand(shape)  # an averaged point
        strided = x.mT.contiguous().mT
        for start in (x, shared, strided):
            assert torch.equal(descend(start, direction, 0.3), start - 0.3 * direction)


def test_a_gradient_step_takes_a_step_size_for_each_row() -> None:
    x, direction = points((3, 4), torch.float64, 0), points((3, 4), torch.float64, 1)
    lr = torch.tensor([[0.1], [0.2], [0.3]], dtype=torch.float64)
    assert torch.equal(descend(x, direction, lr), x - lr * direction)


def test_a_gradient_step_leaves_its_arguments_as_they_were() -> None:
    x, direction = torch.ones(2, 3), torch.ones(2, 3)
    assert torch.equal(descend(x, direction, 0.5), torch.full((2, 3), 0.5))
    assert torch.equal(x, torch.ones(2, 3))
    assert torch.equal(direction, torch.ones(2, 3))


def test_a_scaled_sum_is_the_same_for_a_number_and_for_rows_of_it() -> None:
    x, direction = points((4, 40), torch.float64, 2), points((4, 40), torch.float64, 3)
    rows = torch.full((4, 1), 0.3, dtype=torch.float64)
    expected = add_scaled(x, direction, 0.3)
    torch.testing.assert_close(add_scaled(x, direction, rows), expected, rtol=1e-15, atol=0)
    assert torch.equal(add_scaled(x, direction, 0.3, out=x), expected)
    assert x is add_scaled(x, direction, 0.0, out=x)
