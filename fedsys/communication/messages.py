"""Flat buffers: the fields of the hosted clients as one message, and a message as rows again.

Axes: C hosted clients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsys.communication.weights import Weights
from fedsys.system.memory import recycled


def local_sums(fields: tuple[Tensor, ...], weights: Weights) -> Tensor:
    """Return the weighted sums of `fields` [C, ...] over the hosted clients, in one flat buffer.

    A single field of a single client keeps its shape instead: the time of a small round depends on
    the number of calls, and this path makes the fewest.
    """
    if len(fields) == 1:
        field = fields[0]
        if weights.present is None:
            if len(weights.values) == 1:
                return field.contiguous() * weights.values[0]
            if field.dim() == 2 and field.is_contiguous():
                return torch.mm(weights.row(field), field)  # half the time of mv of the transpose
        return _local_sum(field, weights)
    sizes = [field.numel() // field.shape[0] for field in fields]
    buffer = recycled(fields[0], sum(sizes))
    for field, part in zip(fields, buffer.split_with_sizes(sizes), strict=True):
        _local_sum(field, weights, out=part)
    return buffer


def _local_sum(field: Tensor, weights: Weights, out: Tensor | None = None) -> Tensor:
    if weights.present is not None:
        # Select the rows: a row times 0 would still be NaN where the row is.
        field = field[weights.present]
        if not weights.present:
            empty = field.new_empty(field.shape[1:].numel()) if out is None else out
            return empty.zero_()
    clients = field.shape[0]
    if clients == 1:
        weight = weights.values[weights.present[0] if weights.present else 0]
        return torch.mul(field.reshape(-1), weight, out=out)
    rows = field
    if field.dim() != 2 or not field.is_contiguous():
        # Contiguous, so that rows that share their memory are summed in the same order as others.
        rows = field.reshape(clients, -1).contiguous()
    out = None if out is None else out.unsqueeze(0)
    return torch.mm(weights.row(rows), rows, out=out)


def as_rows(buffer: Tensor, fields: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Split a flat buffer into one row for each of `fields`, expanded to all hosted clients."""
    if len(fields) == 1:
        field = fields[0]
        # Compare the numbers of elements first: comparing shapes takes four times as long.
        if buffer.numel() == field.numel() and buffer.shape == field.shape:
            return (buffer,)
        row = buffer if field.dim() == 2 else buffer.view(field.shape[1:])
        return (row.expand_as(field),)
    parts = buffer.split_with_sizes([field.numel() // field.shape[0] for field in fields])
    return tuple(
        part.view(field.shape[1:]).expand_as(field)
        for part, field in zip(parts, fields, strict=True)
    )
