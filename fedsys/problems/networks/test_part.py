"""The outputs of a network on the test samples: of a common test part, or of the clients' own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedsys.clients.client_data import ClientData
from fedsys.core.site import Site
from fedsys.core.sync import Sync

Apply = Callable[[Tensor], Tensor]


def evaluate_test_part(data: ClientData, site: Site, sync: Sync, apply: Apply) -> Tensor:
    """Return the outputs on all test samples, of which each client computes a part."""
    if data.test_sizes is not None:
        return pooled(own_outputs(data, apply), sync)
    clients = site.placement.clients
    rows = torch.arange(len(data.test_labels), device=data.test_labels.device)
    shares = -(-len(rows) // clients)
    padded = rows.new_zeros(shares * clients)
    padded[: len(rows)] = rows
    mine = padded.view(clients, shares)[site.hosted.start : site.hosted.stop]
    pieces = [apply(inputs) for inputs in data.test_pieces(mine.flatten())]
    outputs = torch.cat(pieces).unflatten(0, mine.shape)
    return sync.gather(outputs).flatten(0, 1)[: len(rows)]


def own_outputs(data: ClientData, apply: Apply) -> list[Tensor]:
    """Return the outputs on the own test samples of each hosted client."""
    assert data.test_sizes is not None
    rows = torch.arange(len(data.test_labels), device=data.test_labels.device)
    parts = rows.split_with_sizes(data.test_sizes)
    return [torch.cat([apply(inputs) for inputs in data.test_pieces(part)]) for part in parts]


def pooled(own: Sequence[Tensor], sync: Sync) -> Tensor:
    """Return the values [n, ...] of all clients, one client after another."""
    lengths = torch.tensor([[len(values)] for values in own], dtype=torch.float64)
    sizes = [int(size) for size in sync.gather(lengths.to(own[0].device)).flatten()]
    padded = own[0].new_zeros((len(own), max(sizes), *own[0].shape[1:]))
    for row, values in zip(padded, own, strict=True):
        row[: len(values)] = values
    every = sync.gather(padded)
    return torch.cat([row[:size] for row, size in zip(every, sizes, strict=True)])
