"""Batches of the hosted clients, by index, from tensors that stay on the device.

Axes: C hosted clients, B samples of a batch, N samples of all hosted clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsys.core.cancellation import cancellable
from fedsys.core.random import Streams
from fedsys.system.memory import to_device

_PIECE_ON_CPU = 2**17
_PIECE_ON_GPU = 2**22
"""Input values that are evaluated at a time: what a network makes of them must fit in memory, and
on a CPU better in its caches (twice as fast as 2^20 for a small convolutional network)."""


class Batch(NamedTuple):
    """One batch per hosted client; `inputs[c]` and `labels[c]` are client c's.

    Both are one tensor [C, B, ...] if all have the same number of samples, else a tensor each.
    `draw` is the (step, k) that it was drawn for; None: it is all samples, and no draw.
    """

    inputs: Tensor | tuple[Tensor, ...]
    labels: Tensor | tuple[Tensor, ...]
    draw: tuple[int, int] | None = None


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
        places: where the samples are among the inputs, [N], if these are not in order or not all.
        purpose: of the streams of random numbers.
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
        places: Tensor | None = None,
        purpose: str = "batches",
    ) -> None:
        self._inputs, self._labels = inputs, labels
        self.sizes, self._clients = list(sizes), clients
        self._batch_size = batch_size
        self._lengths = np.array(self.sizes)
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        self._seed = seed
        self._streams = Streams(seed, purpose)
        self._orders: dict[int, _Orders] = {}
        self._prepare, self._places = prepare, places

    @property
    def labels(self) -> Tensor:
        """The labels of the hosted samples, one client after another: [N]."""
        return self._labels

    @property
    def clients(self) -> Sequence[int]:
        """The numbers of the hosted clients."""
        return self._clients

    def subset(self, samples: Sequence[Tensor]) -> Batches:
        """Return batches of these samples of each hosted client, which stay where they are."""
        chosen = torch.cat([*samples])
        return Batches(
            self._inputs,
            self._labels[chosen],
            [len(own) for own in samples],
            self._clients,
            self._batch_size,
            self._seed,
            self._prepare,
            chosen if self._places is None else self._places[chosen],
        )

    @property
    def whole(self) -> Batch:
        """All samples of each client."""
        parts = [self._samples(self.own(row)) for row in range(len(self.sizes))]
        return Batch(tuple(inputs for inputs, _ in parts), tuple(labels for _, labels in parts))

    @property
    def all_samples(self) -> Batch:
        """All samples of each client, as one tensor if all clients have the same number."""
        if len({*self.sizes}) > 1:
            return self.whole
        return self._stacked(*self._samples(slice(0, len(self._labels))))

    def pieces(self, row: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all samples of the hosted client in this row, in pieces that fit in memory."""
        size, own = piece_size(self._inputs), self.own(row)
        for first in cancellable(range(own.start, own.stop, size)):
            yield self._samples(slice(first, min(first + size, own.stop)))

    def stacks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield all samples of all clients: [c, n, ...] for c consecutive clients with n samples.

        A stack fits in memory; a client with more samples has a stack of its own.
        """
        row = 0
        for size, alike in groupby(self.sizes):
            last = row + len(list(alike))
            count = max(1, piece_size(self._inputs) // max(1, size))
            for first in cancellable(range(row, last, count)):
                clients = slice(first, min(first + count, last))
                length = clients.stop - first
                place = slice(int(self._starts[first]), int(self._starts[first]) + length * size)
                inputs, labels = self._samples(place)
                yield clients, inputs.unflatten(0, (length, size)), labels.view(length, size)
            row = last

    @property
    def batch_size(self) -> int | None:
        """B, or None for all of a client's samples."""
        return self._batch_size

    def at(self, step: int, k: int) -> Batch:
        """The k-th batch of a step."""
        size = self._batch_size
        if size is None:
            whole = self.all_samples
            return Batch(whole.inputs, whole.labels, (step, k))
        index = self.indices(step, k, size)
        # Whole samples are copied: several times faster than indexing, which goes by elements.
        labels = self._labels.index_select(0, index)
        if self._places is not None:
            index = self._places.index_select(0, index)
        inputs = self._prepared(self._inputs.index_select(0, index))
        return self._stacked(inputs, labels, (step, k))

    def indices(self, step: int, k: int, batch_size: int) -> Tensor:
        """The places of each client's samples of a batch, among all samples hosted here: [C B]."""
        orders = self._orders.get(k)
        if orders is None:
            orders = self._orders[k] = _Orders(len(self.sizes), int(self._lengths.sum()))
        if len(self.sizes) == 1:
            # The usual case of one client a process, in a fifth of the time of the general one.
            epoch, start = divmod(step * batch_size, self.sizes[0])
            if epoch == orders.epochs[0] and start + batch_size <= self.sizes[0]:
                pick = orders.samples[start : start + batch_size].copy()
                return to_device(pick, self._inputs.device)
        epochs, first = np.divmod(step * batch_size, self._lengths)
        for row in np.flatnonzero(orders.epochs != epochs).tolist():
            self._shuffle(orders, row, epochs[row], k)
        last = self._starts + self._lengths - 1
        places = (self._starts + first)[:, None] + np.arange(batch_size)
        picks = orders.samples[np.minimum(places, last[:, None])]
        for row in np.flatnonzero(first + batch_size > self._lengths).tolist():
            picks[row] = self._across_epochs(orders, row, int(first[row]), k, batch_size)
        return to_device(picks.reshape(-1), self._inputs.device)

    def own(self, row: int) -> slice:
        """Which of the hosted samples are those of the client in this row."""
        return slice(int(self._starts[row]), int(self._starts[row]) + self.sizes[row])

    def _samples(self, part: slice) -> tuple[Tensor, Tensor]:
        """A part of the hosted samples."""
        if self._places is None:
            inputs = self._inputs[part]
        else:
            inputs = self._inputs.index_select(0, self._places[part])
        return self._prepared(inputs), self._labels[part]

    def _prepared(self, inputs: Tensor) -> Tensor:
        return inputs if self._prepare is None else self._prepare(inputs)

    def _stacked(
        self, inputs: Tensor, labels: Tensor, draw: tuple[int, int] | None = None
    ) -> Batch:
        shape = (len(self.sizes), -1)
        return Batch(inputs.unflatten(0, shape), labels.unflatten(0, shape), draw)

    def _across_epochs(
        self, orders: _Orders, row: int, first: int, k: int, batch_size: int
    ) -> np.ndarray:
        """The end of an epoch of one client, and the beginning of the next."""
        own = orders.samples[self._starts[row] :][: self.sizes[row]]
        parts, missing = [own[first:].copy()], batch_size - (self.sizes[row] - first)
        while missing > 0:
            self._shuffle(orders, row, orders.epochs[row] + 1, k)
            parts.append(own[:missing].copy())
            missing -= len(parts[-1])
        return np.concatenate(parts)

    def _shuffle(self, orders: _Orders, row: int, epoch: int, k: int) -> None:
        """Put the order of one client's epoch in its place."""
        start, size = self._starts[row], self.sizes[row]
        stream = self._streams.at(self._clients[row], int(epoch), k)
        orders.samples[start : start + size] = stream.permutation(size) + start
        orders.epochs[row] = epoch


class _Orders:
    """The samples of all hosted clients, each client's in the order of its present epoch."""

    def __init__(self, clients: int, samples: int) -> None:
        self.epochs = np.full(clients, -1)
        self.samples = np.empty(samples, dtype=np.int64)


def piece_size(inputs: Tensor) -> int:
    """Return how many of these inputs are evaluated at a time."""
    values = _PIECE_ON_CPU if inputs.device.type == "cpu" else _PIECE_ON_GPU
    return max(1, values // max(1, inputs[:1].numel()))
