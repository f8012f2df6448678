"""Rows of variables on their way into and out of a user's function.

Axes: C hosted clients, n entries of a variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from fedsys.problems.custom.client_loop import Rows


def stacked(found: Sequence[Rows]) -> Rows:
    """Return the values of the clients [C, ...], for each output of the function."""
    return tuple(torch.stack(parts) for parts in zip(*found, strict=True))


@contextmanager
def outside_of_inference(rows: Rows = ()) -> Iterator[None]:
    """Let a user's function use autograd: steps run in inference mode, which forbids it.

    The graph is kept if one of the rows requires a gradient.
    """
    with torch.inference_mode(False), torch.set_grad_enabled(any(r.requires_grad for r in rows)):
        yield


def plain(rows: Rows) -> Rows:
    """Return rows that autograd can use; those of inference mode are copied."""
    return tuple(row.clone() if row.is_inference() else row for row in rows)
