"""Arithmetic of steps whose sizes are numbers or, in stacked runs, one number for each row."""

from __future__ import annotations

import torch
from torch import Tensor


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
    if isinstance(scale, Tensor):
        return torch.addcmul(x, direction, scale, out=out)
    if out is None:
        return torch.add(x, direction, alpha=scale)
    if out is x:
        return x.add_(direction, alpha=scale)
    return torch.add(x, direction, alpha=scale, out=out)
