"""Arithmetic of steps whose sizes are numbers or, in stacked runs, one number for each row."""

from __future__ import annotations

import torch
from torch import Tensor

_ONE = {dtype: torch.ones((), dtype=dtype) for dtype in (torch.float32, torch.float64)}


def descend(x: Tensor, direction: Tensor, lr: float | Tensor) -> Tensor:
    """Return x - lr * direction, a gradient step, with the same bits in two thirds of the time.

    addcmul rounds lr * direction before it multiplies by one and adds, so the result is that of two
    operations; with `alpha` of torch.add, the product would not be rounded.

    Args:
        x: the points [C, d].
        direction: what is subtracted from them [C, d].
        lr: a number, or one for each row [C, 1].
    """
    one = _ONE.get(x.dtype)
    if one is None or type(lr) is not float or not x.is_cpu:
        return x - lr * direction
    return torch.addcmul(x, direction, one, value=-lr)


def add_scaled(
    x: Tensor, direction: Tensor, scale: float | Tensor, out: Tensor | None = None
) -> Tensor:
    """Return x + scale * direction in one pass over memory.

    Args:
        x: the points [C, d].
        direction: what is added to them [C, d].
        scale: a number, or one for each row [C, 1].
        out: where to write the result; a new tensor by default.
    """
    if type(scale) is not float and isinstance(scale, Tensor):  # isinstance alone takes longer
        return torch.addcmul(x, direction, scale, out=out)
    if out is None:
        return x.add(direction, alpha=scale)
    if out is x:
        return x.add_(direction, alpha=scale)
    return torch.add(x, direction, alpha=scale, out=out)
