"""The part of a data set that the clients hosted at a site own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsys.clients.batches import Batches, piece_size
from fedsys.communication.values import integer, list_of
from fedsys.core.cancellation import cancellable
from fedsys.core.errors import InputError
from fedsys.core.site import Site
from fedsys.data import Dataset, Partition
from fedsys.data.partition import ClientSplit, split_clients


@dataclass(frozen=True)
class ClientData:
    """The training batches of the hosted clients, and the test samples they are judged on.

    Attributes:
        batches: the training samples of the hosted clients.
        test_inputs: the common test part, or the hosted clients' own, one client after another.
        test_labels: the labels of `test_inputs`.
        counts: the number of training samples of each class of the hosted clients, [C, classes].
        totals: the same summed over all clients, [classes].
        client_split: the partition of the data set.
        prepare: turns inputs in bytes into numbers; None if they are numbers.
        test_sizes: the number of test samples of each hosted client; None if the part is common.
        form: what a prediction needs to know of the data: shape of inputs, classes, preparation.
        validation: the samples that the hosted clients hold out; None without `validation_share`.
    """

    batches: Batches
    test_inputs: Tensor
    test_labels: Tensor
    counts: Tensor
    totals: Tensor
    client_split: ClientSplit | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    test_sizes: list[int] | None = None
    form: Mapping[str, Any] = field(default_factory=dict)
    validation: Batches | None = None

    @classmethod
    def of(
        cls, data: Dataset, partition: Partition, batch_size: int | None, site: Site
    ) -> ClientData:
        """Return the data of the clients hosted at a site."""
        client_split = split_clients(data, partition, site.placement.clients, site.seed)
        mine = [torch.from_numpy(client_split.parts[client]) for client in site.hosted]
        index = torch.cat(mine)
        in_bytes = data.train_inputs.dtype == torch.uint8
        dtype = torch.uint8 if in_bytes else site.dtype
        prepare = data.scaling.on(site.dtype, site.device) if in_bytes else None
        # A rank that has most of the samples reads them where they are: twice may be too much.
        stays = 2 * len(index) > len(data.train_labels) and len(site.hosted) > 1
        inputs = data.train_inputs if stays else data.train_inputs[index]
        batches = Batches(
            inputs.to(dtype=dtype, device=site.device),
            data.train_labels[index].to(site.device),
            [len(part) for part in mine],
            site.hosted,
            batch_size,
            site.seed,
            prepare,
            index.to(site.device) if stays else None,
        )
        counts, totals = class_counts(data, client_split, site)
        return cls(
            batches,
            data.test_inputs.to(dtype=dtype, device=site.device),
            data.test_labels.to(site.device),
            counts,
            totals,
            client_split,
            prepare,
            _test_sizes(data, site),
            {**_form_of(data), "samples_by_client": _sizes_by_client(client_split, site)},
        )

    def test_pieces(self, rows: Tensor) -> Iterator[Tensor]:
        """Yield the test inputs of these rows, in pieces that fit in memory."""
        for piece in cancellable(rows.split(piece_size(self.test_inputs))):
            inputs = self.test_inputs[piece]
            yield inputs if self.prepare is None else self.prepare(inputs)


def class_counts(data: Dataset, client_split: ClientSplit, site: Site) -> tuple[Tensor, Tensor]:
    """Return the class counts of the hosted clients [C, classes], and those of all [classes].

    If clients own their data, the counts of all clients are summed over the ranks.
    """
    labels = data.train_labels.numpy()  # integers, where the loss may want floats
    parts = client_split.parts
    every = np.stack([np.bincount(labels[part], minlength=data.classes) for part in parts])
    counts = torch.from_numpy(every)
    totals = counts.sum(0)
    if client_split.is_owned:
        refuse_clients_without_samples([len(parts[c]) for c in site.hosted], site)
        totals = site.peers.total(totals).long()
    return counts[site.hosted.start : site.hosted.stop], totals


def refuse_clients_without_samples(sizes: list[int], site: Site) -> None:
    """Refuse a hosted client that owns no training sample."""
    for client, size in zip(site.hosted, sizes, strict=True):
        if size == 0:
            raise InputError(
                f"client {client} has no training sample left; leave the client out, or keep "
                "more of its samples"
            )


def _form_of(data: Dataset) -> dict[str, Any]:
    """Return what a prediction needs to know of a data set, as JSON."""
    preparation: Mapping[str, Any] | None = data.preparation
    if preparation is None and data.train_inputs.dtype == torch.uint8:
        scaling = {"mean": list(data.scaling.mean), "std": list(data.scaling.std)}
        channels, size = data.input_shape[0], data.input_shape[-1]
        preparation = {"kind": "images", "size": size, "channels": channels, **scaling}
    return {
        "input_shape": list(data.input_shape),
        "classes": data.classes,
        "preparation": preparation or {"kind": "tensors"},
    }


def _sizes_by_client(client_split: ClientSplit, site: Site) -> list[int]:
    sizes = [len(part) for part in client_split.parts]
    if not client_split.is_owned:
        return sizes
    mine = sizes[site.hosted.start : site.hosted.stop]
    return [size for rank in site.peers.gather(mine, list_of(integer)) for size in rank]


def _test_sizes(data: Dataset, site: Site) -> list[int] | None:
    if data.test_owners is None:
        return None
    return [int((data.test_owners == client).sum()) for client in site.hosted]
