"""Problems of networks: a loss of one or two players and a batch, written once for one client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsys.communication import Sync
from fedsys.data import Batch, Batches, Dataset, Partition
from fedsys.data.partition import refuse_empty_clients
from fedsys.models import FlatModule
from fedsys.problems.oracle import Draw, Site, SteppingOracle

Loss = Callable[..., Tensor]
"""loss(x, y, inputs, labels), or loss(x, inputs, labels); the players x and y are modules. It is a
mean over the samples."""

PIECE = 1000
"""The most samples that go through a network at once when it is evaluated."""


@dataclass(frozen=True)
class ClientData:
    """The training batches of the hosted clients, and the test part that everyone may look at."""

    batches: Batches
    test_inputs: Tensor
    test_labels: Tensor

    @classmethod
    def of(
        cls, data: Dataset, partition: Partition, batch_size: int | None, site: Site
    ) -> ClientData:
        """Give each hosted client its part."""
        labels = data.train_labels.numpy()
        parts = partition.split(labels, site.placement.clients, site.seed)
        refuse_empty_clients(parts)
        mine = [torch.from_numpy(parts[client]) for client in site.hosted]
        index = torch.cat(mine)
        batches = Batches(
            data.train_inputs[index].to(dtype=site.dtype, device=site.device),
            data.train_labels[index].to(site.device),
            [len(part) for part in mine],
            site.hosted,
            batch_size,
            site.seed,
        )
        test = data.test_inputs.to(dtype=site.dtype, device=site.device)
        return cls(batches, test, data.test_labels.to(site.device))


class NetworkOracle(SteppingOracle):
    """Gradients of a loss by autograd, client after client.

    Args:
        site: where the oracle lives.
        loss: of the players and a batch.
        players: the min player, and the max player if there is one.
        data: of the hosted clients.
    """

    def __init__(
        self, site: Site, loss: Loss, players: Iterable[nn.Module], data: ClientData
    ) -> None:
        super().__init__(site)
        self._loss, self.data = loss, data
        self._players = [FlatModule(module, site.dtype, site.device) for module in players]
        self._parameters = [p for player in self._players for p in player.parameters]
        self._dims = [player.vector.numel() for player in self._players]
        self.sizes = data.batches.sizes
        self.z0 = site.rows(torch.cat([player.vector for player in self._players]))
        self.rider = self._statistics()

    @property
    def min_player(self) -> nn.Module:
        """The module of the min player."""
        return self._players[0].module

    def draw(self) -> Draw:
        """The next batch of each hosted client."""
        return self.data.batches.at(*self._next())

    def losses(self, z: Tensor, batch: Batch) -> Tensor:
        """f_m(z_m) on the batch of each hosted client: [C]."""
        rows = z.split_with_sizes(self._dims, dim=1)
        with torch.no_grad(), self._evaluating():
            return torch.stack([self._loss_in_pieces(c, rows, batch) for c in range(len(z))])

    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        """F = (gx, -gy)."""
        x, *y = self._gradients(z.split_with_sizes(self._dims, dim=1), xi)
        return torch.cat([x, *(-g for g in y)], dim=1)

    def full_operator(self, z: Tensor) -> Tensor:
        """F_m on all of client m's data."""
        return self.operator(z, self.data.batches.whole)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """All parameters of the players by name."""
        rows = z.split_with_sizes(self._dims)
        pairs = zip(self._players, rows, strict=True)
        return {name: value for player, row in pairs for name, value in player.named(row).items()}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """The mean over clients of the loss on their own training data."""
        with self._averaged_statistics(sync):
            losses = self.losses(z, self.data.batches.whole)
        return {"train_loss": float(sync(losses[:, None])[0])}

    def test_outputs(self, z: Tensor, sync: Sync, apply: Callable[[Tensor], Tensor]) -> Tensor:
        """The min player's outputs on the whole test part; each client computes a share of it."""
        clients = self.site.placement.clients
        rows = torch.arange(len(self.data.test_labels), device=z.device)
        shares = -(-len(rows) // clients)
        padded = rows.new_zeros(shares * clients)
        padded[: len(rows)] = rows
        mine = padded.view(clients, shares)[self.site.hosted.start : self.site.hosted.stop]
        with torch.no_grad(), self._evaluating(), self._averaged_statistics(sync):
            self._load(0, z.split_with_sizes(self._dims, dim=1))
            outputs = torch.stack(
                [
                    torch.cat([apply(self.data.test_inputs[piece]) for piece in share.split(PIECE)])
                    for share in mine
                ]
            )
        return sync.gather(outputs).flatten(0, 1)[: len(rows)]

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """With the running statistics of BatchNorm instead of the batch's."""
        for player in self._players:
            player.module.eval()
        yield
        for player in self._players:
            player.module.train()

    @contextmanager
    def _averaged_statistics(self, sync: Sync) -> Iterator[None]:
        """Each client has its own statistics between rounds; a model is judged by their mean."""
        own = self.rider
        if own is not None:
            self.rider = sync(own)
        try:
            yield
        finally:
            self.rider = own

    def _gradients(self, rows: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, ...]:
        """The gradients in the players, joined for all clients and parameters in one go."""
        clients = range(len(rows[0]))
        parts = [part.reshape(-1) for c in clients for part in self._backward(c, rows, batch)]
        joined = torch.cat(parts).view(len(clients), -1)
        return joined.split_with_sizes(self._dims, dim=1)

    def _backward(self, client: int, rows: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, ...]:
        """One client's gradients in all parameters."""
        with torch.enable_grad():
            loss = self._loss_at(client, rows, batch)
        self._keep_statistics(client)
        return torch.autograd.grad(loss, self._parameters, materialize_grads=True)

    def _loss_at(self, client: int, rows: tuple[Tensor, ...], batch: Batch) -> Tensor:
        self._load(client, rows)
        return self._loss_of(batch.inputs[client], batch.labels[client])

    def _loss_in_pieces(self, client: int, rows: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """The same for all of a client's data, which need not fit into memory at once."""
        self._load(client, rows)
        inputs, labels = batch.inputs[client].split(PIECE), batch.labels[client].split(PIECE)
        losses = [self._loss_of(*piece) for piece in zip(inputs, labels, strict=True)]
        if len(losses) == 1:
            return losses[0]
        weights = losses[0].new_tensor([len(piece) / len(batch.labels[client]) for piece in labels])
        return torch.stack(losses) @ weights

    def _loss_of(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """At the point that is loaded."""
        modules = (player.module for player in self._players)
        return self._loss(*modules, inputs, labels)

    def _load(self, client: int, rows: tuple[Tensor, ...]) -> None:
        for player, row in zip(self._players, rows, strict=True):
            player.load(row[client])
        self._load_statistics(client)

    def _load_statistics(self, client: int) -> None:
        if self.rider is not None:
            self._players[0].buffers.copy_(self.rider[client])

    def _keep_statistics(self, client: int) -> None:
        if self.rider is not None:
            self.rider[client] = self._players[0].buffers

    def _statistics(self) -> Tensor | None:
        buffers = self._players[0].buffers
        return self.site.rows(buffers).clone() if buffers.numel() else None


class MinimaxNetworkOracle(NetworkOracle):
    """Two players."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.x0, self.y0 = self.z0.split_with_sizes(self._dims, dim=1)

    def grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """The gradients in x and in y, from one backward pass."""
        gx, gy = self._gradients((x, y), xi)
        return gx, gy


class MinimisationNetworkOracle(NetworkOracle):
    """One player."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.x0 = self.z0

    def grad(self, x: Tensor, xi: Draw) -> Tensor:
        """The gradient."""
        (gx,) = self._gradients((x,), xi)
        return gx
