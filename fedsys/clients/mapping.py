"""Compute a loss that is written for one client for all clients that a rank hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from fedsys.clients.batches import Batch
from fedsys.clients.dense import DenseStack
from fedsys.clients.flat_module import FlatModule
from fedsys.clients.stacked_modules import StackedModules, is_dense, obstacle
from fedsys.core.errors import InputError, require
from fedsys.system.memory import recycled

WAYS = ("auto", "vmap", "loop")

Loss = Callable[..., Tensor]
"""loss(x, y, inputs, labels), or loss(x, inputs, labels); the players x and y are modules. It is a
mean over the samples."""


class ScoreLoss(Protocol):
    """A loss that knows its derivatives in the outputs of the network and in what is beside it."""

    def slopes(self, scores: Tensor, labels: Tensor, *beside: Tensor) -> tuple[Tensor, ...]:
        """The derivatives of all clients' losses.

        Args:
            scores: the network's outputs [C, B, O].
            labels: [C, B].
            beside: the min player's parameters outside of the network and the max player [C, ...],
                those of the two that there are. The derivatives are in the same order.
        """


def require_way(owner: str, vectorize: str) -> None:
    """Refuse what is no way to map a loss over clients."""
    require(vectorize in WAYS, owner, "vectorize", vectorize, "one of " + ", ".join(WAYS))


def choose_way(
    vectorize: str, players: Sequence[FlatModule], losses: Sequence[Loss], draws: bool = False
) -> BatchedClients | None:
    """The way to compute all clients together, or None for one after another.

    "auto" computes together what a rank hosts if all clients have the same loss, every layer with
    weights is dense, and there are several clients or derivatives written down for one.
    Convolutions are as fast one after another on a CPU, and what changes buffers (BatchNorm)
    cannot be stacked; nor can networks that draw random numbers (`draws`), which every client draws
    from a stream of its own.
    """
    hindrance = next((h for p in players if (h := obstacle(p.module)) is not None), None)
    if draws:
        hindrance = "the network draws random numbers in its forward pass"
    if any(loss != losses[0] for loss in losses):
        hindrance = "the clients have losses of their own"
    if vectorize == "vmap":
        if hindrance is not None:
            raise InputError(f"problem.vectorize=vmap is not possible: {hindrance}; use auto")
        return BatchedClients(players, losses[0])
    dense = all(is_dense(player.module) for player in players)
    if vectorize == "loop" or not dense or hindrance is not None:
        return None
    at_once = BatchedClients(players, losses[0])
    return at_once if len(losses) > 1 or at_once.by_hand else None


class BatchedClients:
    """One loss for all clients, whose batches are stacked: [C, B, ...].

    `stack` is the players of all clients, for other functions of them.

    By hand where the network and the loss have their derivatives written down, else by vmap.
    """

    def __init__(self, players: Sequence[FlatModule], loss: Loss) -> None:
        self.stack, self._loss = StackedModules(players), loss
        self._dims = [player.vector.numel() for player in players]
        self._dense: DenseStack | None = None
        self._slopes: Callable[..., tuple[Tensor, ...]] | None = getattr(loss, "slopes", None)
        if self._slopes is not None and DenseStack.fits(players[0].module):
            self._dense = DenseStack(players[0])

    @property
    def by_hand(self) -> bool:
        """Whether gradients are computed without autograd, which pays for a single client too."""
        return self._dense is not None

    def losses(self, rows: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """Of each client: [C]."""
        return self.stack(self._loss, rows, *_stacked(batch))

    def gradients(self, rows: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """In the parameters of all players: [C, d]."""
        inputs, labels = _stacked(batch)
        if self._dense is None or self._slopes is None:
            return self.stack.gradients(self._loss, rows, inputs, labels)
        x, *y = rows
        joined, first = recycled(x, len(x), sum(self._dims)), self._dense.first
        own, network, *others = joined.split_with_sizes(
            [first, self._dims[0] - first, *self._dims[1:]], dim=1
        )
        scores, pull = self._dense.scores(x[:, first:], inputs)
        beside = ([x[:, :first]] if first else []) + y
        of_scores, *of_beside = self._slopes(scores, labels, *beside)
        pull(of_scores, out=network)
        for slot, slope in zip(([own] if first else []) + others, of_beside, strict=True):
            slot.copy_(slope)
        return joined


def _stacked(batch: Batch) -> tuple[Tensor, Tensor]:
    inputs, labels, _ = batch
    assert isinstance(inputs, Tensor)
    assert isinstance(labels, Tensor)
    return inputs, labels
