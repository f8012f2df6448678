"""Batches of the hosted clients, by index, from tensors that stay on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsys.random import generator

_PIECE_ON_CPU = 2**17
_PIECE_ON_GPU = 2**22
"""Input values that are evaluated at a time: what a network makes of them must fit in memory, and
on a CPU better in its caches (twice as fast as 2^20 for a small convolutional network)."""


class Batch(NamedTuple):
    """One batch per hosted client; `inputs[c]` and `labels[c]` are client c's."""

    inputs: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]


class Batches:
    """Epochs of each client's samples, each in an order of its own.

    Draw k of step t reads positions t*B .. t*B + B-1 of an endless sequence of permutations, those
    of (seed, client, epoch, k). So every sample is seen once an epoch, a batch always has B
    samples, and the batch depends on (seed, client, t, k) alone.

    Args:
        inputs: all samples of the hosted clients, [N, ...].
        labels: their labels, [N].
        sizes: how many of them belong to each hosted client, in order.
        clients: the numbers of the hosted clients.
        batch_size: B, or None for all of a client's samples at every step.
        seed: of the permutations.
        prepare: what makes numbers of inputs in bytes, batch by batch; None: they are numbers.
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        sizes: Sequence[int],
        clients: Sequence[int],
        batch_size: int | None,
        seed: int,
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._inputs, self._labels = inputs, labels
        self.sizes, self._clients = list(sizes), clients
        self._batch_size, self._seed = batch_size, seed
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        self._orders: dict[tuple[int, int], tuple[int, Tensor]] = {}
        self._prepare = prepare
        self._parts = Batch(
            inputs.split_with_sizes(self.sizes), labels.split_with_sizes(self.sizes)
        )

    @property
    def whole(self) -> Batch:
        """All samples of each client."""
        return self._prepared(*self._parts)

    def pieces(self, row: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All samples of the hosted client in this row, as many at a time as memory is sure of."""
        size = piece_size(self._inputs)
        parts = (values[row].split(size) for values in self._parts)
        for inputs, labels in zip(*parts, strict=True):
            yield inputs if self._prepare is None else self._prepare(inputs), labels

    def at(self, step: int, k: int) -> Batch:
        """The k-th batch of a step."""
        if self._batch_size is None:
            return self.whole
        rows = self.indices(step, k, self._batch_size)
        # Whole samples are copied: several times faster than indexing, which goes by elements.
        return self._prepared(
            tuple(self._inputs.index_select(0, row) for row in rows),
            tuple(self._labels.index_select(0, row) for row in rows),
        )

    def _prepared(self, inputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Batch:
        if self._prepare is not None:
            inputs = tuple(self._prepare(part) for part in inputs)
        return Batch(inputs, labels)

    def indices(self, step: int, k: int, batch_size: int) -> list[Tensor]:
        """The places of each client's samples of a batch, among all samples hosted here."""
        rows = []
        for row, size in enumerate(self.sizes):
            epoch, first = divmod(step * batch_size, size)
            parts, missing = [], batch_size
            while missing > 0:
                part = self._order(row, epoch, k)[first : first + missing]
                parts.append(part)
                missing -= len(part)
                epoch, first = epoch + 1, 0
            rows.append(parts[0] if len(parts) == 1 else torch.cat(parts))
        return rows

    def _order(self, row: int, epoch: int, k: int) -> Tensor:
        cached = self._orders.get((row, k))
        if cached is None or cached[0] != epoch:
            stream = generator(self._seed, "batches", self._clients[row], epoch, k)
            order = stream.permutation(self.sizes[row]) + self._starts[row]
            cached = (epoch, torch.from_numpy(order).to(self._inputs.device))
            self._orders[row, k] = cached
        return cached[1]


def piece_size(inputs: Tensor) -> int:
    """How many of these inputs are evaluated at a time."""
    values = _PIECE_ON_CPU if inputs.device.type == "cpu" else _PIECE_ON_GPU
    return max(1, values // max(1, inputs[:1].numel()))
