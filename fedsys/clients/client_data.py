"""The part of a data set that the clients hosted at a site own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsys.clients.batches import Batches, piece_size
from fedsys.core.cancellation import cancellable
from fedsys.core.site import Site
from fedsys.data import Dataset, Partition
from fedsys.data.partition import ClientSplit, split_clients


@dataclass(frozen=True)
class ClientData:
    """The training batches of the hosted clients, and what everyone may look at.

    Attributes:
        batches: of the hosted clients.
        test_inputs: of the test part.
        test_labels: of the test part.
        counts: how many training samples of each class every client has, [M, classes].
    """

    batches: Batches
    test_inputs: Tensor
    test_labels: Tensor
    counts: Tensor
    client_split: ClientSplit | None = None
    prepare: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(
        cls, data: Dataset, partition: Partition, batch_size: int | None, site: Site
    ) -> ClientData:
        """Give each hosted client its part."""
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
        test = data.test_inputs.to(dtype=dtype, device=site.device)
        labels = data.train_labels.long().numpy()  # numbers, where the loss wants numbers
        counts = [np.bincount(labels[part], minlength=data.classes) for part in client_split.parts]
        return cls(
            batches,
            test,
            data.test_labels.to(site.device),
            torch.from_numpy(np.stack(counts)),
            client_split,
            prepare,
        )

    def test_pieces(self, rows: Tensor) -> Iterator[Tensor]:
        """The test inputs of these rows, as many at a time as memory is sure of."""
        for piece in cancellable(rows.split(piece_size(self.test_inputs))):
            inputs = self.test_inputs[piece]
            yield inputs if self.prepare is None else self.prepare(inputs)
