"""Problems of networks: a loss of one or two players and a batch, written once for one client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedsys.communication import Sync
from fedsys.data import Batch
from fedsys.memory import keep_freed_memory
from fedsys.models import FlatModule, flattened
from fedsys.problems.client_data import ClientData
from fedsys.problems.mapping import AtOnce, Loss, choose_way
from fedsys.problems.oracle import Draw
from fedsys.problems.site import Site
from fedsys.problems.stepping import SteppingOracle
from fedsys.problems.terms import NONE, Term, TwoPlayers


class NetworkOracle(SteppingOracle):
    """Gradients of a loss by autograd, client after client or for all of them at once.

    Args:
        site: where the oracle lives.
        loss: of the players and a batch; or one for each hosted client.
        players: the min player, and the max player if there is one.
        data: of the hosted clients.
        vectorize: "auto", "vmap" or "loop", see fedsys/problems/mapping.py.
    """

    def __init__(
        self,
        site: Site,
        loss: Loss | Sequence[Loss],
        players: Iterable[nn.Module],
        data: ClientData,
        vectorize: str = "auto",
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
        self._at_once = choose_way(vectorize, self._players, self._losses)
        keep_freed_memory(self.z0.numel() * self.z0.element_size())

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
            if (at_once := self._way(batch)) is not None:
                return at_once.losses(rows, batch)
            return torch.stack([self._loss_at(c, rows, batch) for c in range(len(z))])

    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        """F = (gx, -gy)."""
        x, *y = self._gradients(z.split_with_sizes(self._dims, dim=1), xi)
        return torch.cat([x, *(-g for g in y)], dim=1)

    def full_operator(self, z: Tensor) -> Tensor:
        """F_m on all of client m's data."""
        return self.operator(z, self.data.batches.all_samples)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """All parameters of the players by name."""
        rows = z.split_with_sizes(self._dims)
        pairs = zip(self._players, rows, strict=True)
        return {name: value for player, row in pairs for name, value in player.named(row).items()}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """The mean over clients of the loss on their own training data."""
        rows = z.split_with_sizes(self._dims, dim=1)
        with torch.no_grad(), self._evaluating(), self._averaged_statistics(sync):
            losses = self._train_losses(rows)
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
            pieces = [apply(inputs) for inputs in self.data.test_pieces(mine.flatten())]
            outputs = torch.cat(pieces).unflatten(0, mine.shape)
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
        if (at_once := self._way(batch)) is not None:
            joined = at_once.gradients(rows, batch)
        else:
            clients = range(len(rows[0]))
            parts = [flattened(part) for c in clients for part in self._backward(c, rows, batch)]
            joined = torch.cat(parts).view(len(clients), -1)
        return joined.split_with_sizes(self._dims, dim=1)

    def _way(self, batch: Batch) -> AtOnce | None:
        """How to compute all clients at once, if their parts of this batch have the same size."""
        return self._at_once if isinstance(batch.inputs, Tensor) else None

    def _backward(self, client: int, rows: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, ...]:
        """One client's gradients in all parameters."""
        with torch.enable_grad():
            loss = self._loss_at(client, rows, batch)
        self._keep_statistics(client)
        return torch.autograd.grad(loss, self._parameters, materialize_grads=True)

    def _loss_at(self, client: int, rows: tuple[Tensor, ...], batch: Batch) -> Tensor:
        self._load(client, rows)
        return self._losses[client](*self._modules(), batch.inputs[client], batch.labels[client])

    def _train_losses(self, rows: tuple[Tensor, ...]) -> Tensor:
        """The losses on all samples of each hosted client: [C]."""
        if self._at_once is None:
            return torch.stack([self._train_loss(c, rows) for c in range(len(rows[0]))])
        parts = []
        for clients, inputs, labels in self.data.batches.stacks():
            if len(labels) == 1:  # it may have more samples than fit in memory at a time
                parts.append(self._train_loss(clients.start, rows)[None])
                continue
            mine = tuple(row[clients] for row in rows)
            parts.append(self._at_once.losses(mine, Batch(inputs, labels)))
        return torch.cat(parts)

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
        return self.grads(x, y, self.data.batches.all_samples)


class MinimisationNetworkOracle(NetworkOracle):
    """One player."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.x0 = self.z0

    def grad(self, x: Tensor, xi: Draw) -> Tensor:
        """The gradient."""
        (gx,) = self._gradients((x,), xi)
        return gx
