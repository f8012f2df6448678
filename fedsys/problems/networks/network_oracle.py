"""Oracles of networks, from the loss of one client as a function of its players and a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsys.clients.batches import Batch
from fedsys.clients.client_data import ClientData
from fedsys.clients.flat_module import FlatModule, flattened
from fedsys.clients.forward_pass import ForwardGenerators, inspect_forward
from fedsys.clients.mapping import BatchedClients, Loss, choose_way
from fedsys.core.oracles import Draw
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.networks import training_options as training
from fedsys.problems.networks.test_part import evaluate_test_part, own_outputs, pooled
from fedsys.problems.networks.validation_metrics import held_out_metrics
from fedsys.problems.stepping import SteppingOracle
from fedsys.problems.terms import NONE, Term, TwoPlayers
from fedsys.system.memory import keep_freed_memory


class NetworkOracle(SteppingOracle):
    """Gradients of a loss by autograd, for one client after another or for all at once.

    Args:
        site: the hosted clients, the seed, and the dtype and device of tensors.
        loss: the loss as a function of the players and a batch, or one for each hosted client.
        players: the min player, and the max player if there is one.
        data: the data of the hosted clients.
        vectorize: "auto", "vmap" or "loop", see fedsys/clients/mapping.py.
        options: pieces of batches, weight decay and balanced batches.
    """

    def __init__(
        self,
        site: Site,
        loss: Loss | Sequence[Loss],
        players: Iterable[nn.Module],
        data: ClientData,
        vectorize: str = "auto",
        options: training.TrainingOptions = training.DEFAULT,
    ) -> None:
        super().__init__(site)
        self._losses = loss if isinstance(loss, Sequence) else [loss] * len(site.hosted)
        self.data, self.client_split, self._options = data, data.client_split, options
        self._players = [FlatModule(module, site.dtype, site.device) for module in players]
        self._parameters = [p for player in self._players for p in player.parameters]
        self._dims = [player.vector.numel() for player in self._players]
        self.sizes = data.batches.sizes
        self.z0 = site.rows(torch.cat([player.vector for player in self._players]))
        self.synchronised_buffers = self._statistics()
        training.refuse_pieces(options, self.synchronised_buffers is not None)
        self._decay = training.decay_row(self._players[0], options.weight_decay)
        randomness = inspect_forward([*self._modules()], self._trial_loss, site.device)
        self._at_once = choose_way(vectorize, self._players, self._losses, randomness.always)
        self._generators = None
        if randomness.torch:
            self._generators = ForwardGenerators(site.seed, site.device, randomness)
        keep_freed_memory(self.z0.numel() * self.z0.element_size())

    @property
    def min_player(self) -> nn.Module:
        """The module of the min player."""
        return self._players[0].module

    @property
    @override
    def samples_per_draw(self) -> int | None:
        return self.data.batches.batch_size

    def draw(self) -> Draw:
        """Return the next batch of each hosted client."""
        return self.data.batches.at(*self._next())

    def losses(self, z: Tensor, batch: Batch) -> Tensor:
        """Return f_m(z_m) on the batch of each hosted client: [C]."""
        rows = z.split_with_sizes(self._dims, dim=1)
        with torch.no_grad(), self._evaluating():
            if (at_once := self._batched(batch)) is not None:
                found = at_once.losses(rows, batch)
            else:
                found = torch.stack([self._loss_at(c, rows, batch) for c in range(len(z))])
            return training.regularised(found, rows[0], self._decay)

    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        """Return F = (gx, -gy)."""
        x, *y = self._gradients(z.split_with_sizes(self._dims, dim=1), xi)
        return torch.cat([x, *(-g for g in y)], dim=1)

    def full_operator(self, z: Tensor) -> Tensor:
        """Return F_m on all of client m's data."""
        return self.operator(z, self.data.batches.all_samples)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """Return parameters and buffers of the players by name; running statistics are initial."""
        rows = z.split_with_sizes(self._dims)
        pairs = zip(self._players, rows, strict=True)
        return {name: value for player, row in pairs for name, value in player.state(row).items()}

    def trained(self, z: Tensor, sync: Sync) -> dict[str, Tensor]:
        """Return the same with the running statistics of `evaluate`, the mean over the clients."""
        if self.synchronised_buffers is None:
            return self.named(z)
        row = z.split_with_sizes(self._dims)[0]
        return {**self.named(z), **self._players[0].state(row, sync(self.synchronised_buffers)[0])}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """Return train_loss, the mean over the clients of the loss on their own training data.

        It includes the weight decay, and weights the classes by `positive_share`.
        """
        rows = z.split_with_sizes(self._dims, dim=1)
        with torch.no_grad(), self._evaluating(), self._averaged_statistics(sync):
            losses = training.regularised(self._train_losses(rows), rows[0], self._decay)
            load = partial(self._load, rows=rows)
            found = held_out_metrics(self.data, load, self._loss_of, self.min_player, sync)
        return {"train_loss": float(sync(losses[:, None])[0]), **found}

    def test_outputs(self, z: Tensor, sync: Sync, apply: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the min player's outputs on all test samples.

        Each client computes its own, one client after another in the result; a common test part is
        divided among the clients.
        """
        with torch.no_grad(), self._evaluating(), self._averaged_statistics(sync):
            self._load(0, z.split_with_sizes(self._dims, dim=1))
            return evaluate_test_part(self.data, self.site, sync, apply)

    def test_labels(self, sync: Sync) -> Tensor:
        """Return the labels of `test_outputs`."""
        if self.data.test_sizes is None:
            return self.data.test_labels
        own = self.data.test_labels.double().split_with_sizes(self.data.test_sizes)
        return pooled(own, sync).long()

    def form(self) -> dict[str, Any]:
        """Return what is needed to use the network after the run, as JSON."""
        net = getattr(self.min_player, "net", self.min_player)
        inputs = next(iter(self.data.test_pieces(torch.zeros(1, dtype=torch.int64))))
        with torch.no_grad(), self._evaluating():
            return {**self.data.form, "outputs": net(inputs).shape[1]}

    def own_test_outputs(
        self, z: Tensor, sync: Sync, apply: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """Return the min player's outputs on the own test samples of each hosted client."""
        with torch.no_grad(), self._evaluating(), self._averaged_statistics(sync):
            self._load(0, z.split_with_sizes(self._dims, dim=1))
            return own_outputs(self.data, apply)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Use the running statistics of BatchNorm instead of those of the batch."""
        for player in self._players:
            player.module.eval()
        try:
            yield
        finally:
            for player in self._players:
                player.module.train()

    @contextmanager
    def _averaged_statistics(self, sync: Sync) -> Iterator[None]:
        """Evaluate with the mean of the statistics, which differ by client between rounds."""
        own = self.synchronised_buffers
        if own is not None:
            self.synchronised_buffers = sync(own)
        try:
            yield
        finally:
            self.synchronised_buffers = own

    def _gradients(self, rows: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, ...]:
        """Return the gradients in the players, concatenated over clients and parameters."""
        if (at_once := self._batched(batch)) is not None:
            joined = at_once.gradients(rows, batch)
        else:
            clients = range(len(rows[0]))
            parts = [flattened(part) for c in clients for part in self._backward(c, rows, batch)]
            joined = torch.cat(parts).view(len(clients), -1)
        if self._decay is not None:
            joined[:, : self._dims[0]].addcmul_(self._decay, rows[0])
        return joined.split_with_sizes(self._dims, dim=1)

    def _batched(self, batch: Batch) -> BatchedClients | None:
        """Return how to compute all clients at once, if their batches have the same size."""
        return self._at_once if isinstance(batch.inputs, Tensor) else None

    def _backward(self, client: int, rows: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, ...]:
        """Return one client's gradients in all parameters."""
        with self._random_numbers(client, batch):
            if (size := self._options.micro_batch) is not None:
                self._load(client, rows)
                given = self._parameters, batch.inputs[client], batch.labels[client]
                return training.gradients_in_pieces(self._loss_of(client), *given, size)
            with torch.enable_grad():
                loss = self._loss_at(client, rows, batch)
            self._keep_statistics(client)
            return torch.autograd.grad(loss, self._parameters, materialize_grads=True)

    def _random_numbers(self, row: int, batch: Batch) -> AbstractContextManager[None]:
        """Seed the random numbers of a forward pass of the client in this row on this batch."""
        if self._generators is None:
            return nullcontext()
        return self._generators.at(self.site.hosted[row], batch.draw)

    def _trial_loss(self) -> Tensor:
        """Return the loss on two test samples, to detect side effects of a forward pass."""
        rows = torch.arange(2, device=self.data.test_labels.device) % len(self.data.test_labels)
        inputs = torch.cat([*self.data.test_pieces(rows)])
        return self._losses[0](*self._modules(), inputs, self.data.test_labels[rows])

    def _loss_at(self, client: int, rows: tuple[Tensor, ...], batch: Batch) -> Tensor:
        self._load(client, rows)
        return self._losses[client](*self._modules(), batch.inputs[client], batch.labels[client])

    def _train_losses(self, rows: tuple[Tensor, ...]) -> Tensor:
        """Return the losses on all samples of each hosted client: [C]."""
        if self._at_once is None or self._options.positive_share is not None:
            return torch.stack([self._train_loss(c, rows) for c in range(len(rows[0]))])
        parts = []
        for clients, inputs, labels in self.data.batches.stacks():
            if len(labels) == 1:  # a single client may have more samples than fit in memory
                parts.append(self._train_loss(clients.start, rows)[None])
                continue
            mine = tuple(row[clients] for row in rows)
            parts.append(self._at_once.losses(mine, Batch(inputs, labels)))
        return torch.cat(parts)

    def _train_loss(self, client: int, rows: tuple[Tensor, ...]) -> Tensor:
        """Return the mean loss over all of a client's samples, computed piece by piece."""
        self._load(client, rows)
        share, size = self._options.positive_share, self.sizes[client]
        loss, pieces = self._loss_of(client), self.data.batches.pieces(client)
        if share is not None:
            return training.balanced_loss(loss, pieces, share)
        return torch.stack([loss(x, labels) * (len(labels) / size) for x, labels in pieces]).sum()

    def _loss_of(self, client: int) -> training.BatchLoss:
        """Return the loss of a client, whose point is loaded, as a function of a batch."""
        return partial(self._losses[client], *self._modules())

    def _modules(self) -> Iterator[nn.Module]:
        return (player.module for player in self._players)

    def _load(self, client: int, rows: tuple[Tensor, ...]) -> None:
        for player, row in zip(self._players, rows, strict=True):
            player.load(row[client])
        self._load_statistics(client)

    def _load_statistics(self, client: int) -> None:
        if self.synchronised_buffers is not None:
            self._players[0].statistics.copy_(self.synchronised_buffers[client])

    def _keep_statistics(self, client: int) -> None:
        if self.synchronised_buffers is not None:
            self.synchronised_buffers[client] = self._players[0].statistics

    def _statistics(self) -> Tensor | None:
        statistics = self._players[0].statistics
        return self.site.rows(statistics).clone() if statistics.numel() else None


class MinimaxNetworkOracle(TwoPlayers, NetworkOracle):
    """An oracle of two players, each with an optional term or constraint."""

    def __init__(self, *args: Any, terms: tuple[Term, Term] = (NONE, NONE), **options: Any) -> None:
        super().__init__(*args, **options)
        self._terms, self._split = terms, self._dims[0]
        self.x0, self.y0 = self.z0.split_with_sizes(self._dims, dim=1)

    def grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """Return the gradients in x and in y, from one backward pass."""
        gx, gy = self._gradients((x, y), xi)
        return gx, gy

    def full_grads(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients in x and in y on all of a client's data."""
        return self.grads(x, y, self.data.batches.all_samples)


class MinimisationNetworkOracle(NetworkOracle):
    """An oracle of one player."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.x0 = self.z0

    def grad(self, x: Tensor, xi: Draw) -> Tensor:
        """Return the gradient."""
        (gx,) = self._gradients((x,), xi)
        return gx
