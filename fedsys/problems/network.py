"""Problems of networks: a loss of one or two players and a batch, written once for one client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsys.communication import Sync
from fedsys.data import Batch, Batches, Dataset, Partition
from fedsys.data.batches import piece_size
from fedsys.data.partition import Deal, deal
from fedsys.models import FlatModule
from fedsys.problems.oracle import Draw, Site, SteppingOracle
from fedsys.problems.terms import NONE, Term, TwoPlayers

Loss = Callable[..., Tensor]
"""loss(x, y, inputs, labels), or loss(x, inputs, labels); the players x and y are modules. It is a
mean over the samples."""


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
    deal: Deal | None = None
    prepare: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(
        cls, data: Dataset, partition: Partition, batch_size: int | None, site: Site
    ) -> ClientData:
        """Give each hosted client its part."""
        dealt = deal(data, partition, site.placement.clients, site.seed)
        mine = [torch.from_numpy(dealt.parts[client]) for client in site.hosted]
        index = torch.cat(mine)
        in_bytes = data.train_inputs.dtype == torch.uint8
        dtype = torch.uint8 if in_bytes else site.dtype
        prepare = data.scaling.on(site.dtype, site.device) if in_bytes else None
        batches = Batches(
            data.train_inputs[index].to(dtype=dtype, device=site.device),
            data.train_labels[index].to(site.device),
            [len(part) for part in mine],
            site.hosted,
            batch_size,
            site.seed,
            prepare,
        )
        test = data.test_inputs.to(dtype=dtype, device=site.device)
        labels = data.train_labels.long().numpy()  # numbers, where the loss wants numbers
        counts = [np.bincount(labels[part], minlength=data.classes) for part in dealt.parts]
        return cls(
            batches,
            test,
            data.test_labels.to(site.device),
            torch.from_numpy(np.stack(counts)),
            dealt,
            prepare,
        )

    def test_pieces(self, rows: Tensor) -> Iterator[Tensor]:
        """The test inputs of these rows, as many at a time as memory is sure of."""
        for piece in rows.split(piece_size(self.test_inputs)):
            inputs = self.test_inputs[piece]
            yield inputs if self.prepare is None else self.prepare(inputs)


class NetworkOracle(SteppingOracle):
    """Gradients of a loss by autograd, client after client.

    Args:
        site: where the oracle lives.
        loss: of the players and a batch; or one for each hosted client.
        players: the min player, and the max player if there is one.
        data: of the hosted clients.
    """

    def __init__(
        self,
        site: Site,
        loss: Loss | Sequence[Loss],
        players: Iterable[nn.Module],
        data: ClientData,
    ) -> None:
        super().__init__(site)
        self._losses = loss if isinstance(loss, Sequence) else [loss] * len(site.hosted)
        self.data, self.deal = data, data.deal
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
            return torch.stack([self._loss_at(c, rows, batch) for c in range(len(z))])

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
        rows = z.split_with_sizes(self._dims, dim=1)
        with torch.no_grad(), self._evaluating(), self._averaged_statistics(sync):
            losses = torch.stack([self._train_loss(client, rows) for client in range(len(z))])
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
                [torch.cat([apply(inputs) for inputs in self.data.test_pieces(s)]) for s in mine]
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
        return self._losses[client](*self._modules(), batch.inputs[client], batch.labels[client])

    def _train_loss(self, client: int, rows: tuple[Tensor, ...]) -> Tensor:
        """The loss on all of a client's samples, which is a mean over them, piece by piece."""
        self._load(client, rows)
        size = self.sizes[client]
        losses = [
            self._losses[client](*self._modules(), inputs, labels) * (len(labels) / size)
            for inputs, labels in self.data.batches.pieces(client)
        ]
        return torch.stack(losses).sum()

    def _modules(self) -> Iterator[nn.Module]:
        return (player.module for player in self._players)

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


class MinimaxNetworkOracle(TwoPlayers, NetworkOracle):
    """Two players, each with a term or constraint if `terms` has one."""

    def __init__(self, *args: Any, terms: tuple[Term, Term] = (NONE, NONE)) -> None:
        super().__init__(*args)
        self._terms, self._split = terms, self._dims[0]
        self.x0, self.y0 = self.z0.split_with_sizes(self._dims, dim=1)

    def grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """The gradients in x and in y, from one backward pass."""
        gx, gy = self._gradients((x, y), xi)
        return gx, gy

    def full_grads(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The same on all of a client's data."""
        return self.grads(x, y, self.data.batches.whole)


class MinimisationNetworkOracle(NetworkOracle):
    """One player."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.x0 = self.z0

    def grad(self, x: Tensor, xi: Draw) -> Tensor:
        """The gradient."""
        (gx,) = self._gradients((x,), xi)
        return gx
