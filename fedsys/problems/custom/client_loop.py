"""Compute a user's function for one client after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsys.clients.forward_pass import ForwardGenerators
from fedsys.core.errors import InputError
from fedsys.core.site import Site
from fedsys.problems.custom.client_data import HostedData
from fedsys.problems.custom.draws import Draws, Watch, WatchedGenerator, to_indices
from fedsys.problems.custom.user_function import UserFunction

Rows = tuple[Tensor, ...]
Xi = tuple[int, int]

TRIAL: Xi = (0, 1 << 21)
"""A draw that no iteration uses, for trying functions out."""


@dataclass(frozen=True)
class Hosted:
    """What all functions of a problem share: the hosted clients, their data and their draws."""

    site: Site
    data: HostedData
    draws: Draws
    per_batch: bool = False
    """Whether the function of a finite sum takes the indices of all samples of a draw."""
    batched: bool = False
    """Whether functions take all hosted clients at once."""
    vectorize: str = "auto"
    rng: str = "numpy"
    mean_draws: int | None = None
    """The number of draws whose average stands for an unknown mean; None if there is none."""


class ClientLoop:
    """A user's function of single clients, at draws (step, k) or on all data of a client.

    Args:
        function: the function of one client.
        hosted: the clients.
        gradients: whether to compute gradients in all variables in place of values.
    """

    def __init__(self, function: UserFunction, hosted: Hosted, gradients: bool) -> None:
        self._function, self._hosted, self._gradients = function, hosted, gradients
        # A function may call a module that draws from torch's generator, such as Dropout.
        self._generators = ForwardGenerators(hosted.site.seed, hosted.site.device)
        self._rng = "torch" if function.wants_torch else hosted.rng

    def _value(
        self, row: int, rows: Rows, xi: Xi | None, chosen: Sequence[int] | None = None
    ) -> Tensor:
        """Return the mean of one client's function over a draw, over all samples (None), or over
        chosen samples."""
        hosted, call = self._hosted, self._function.named
        client, data = hosted.site.hosted[row], hosted.data.of_client[row]
        counts = hosted.draws.counts
        if counts is None:
            drawn = xi or (0, 0)
            rng = hosted.draws.generator(self._rng, client, *drawn)
            return call(rows, data, rng, client)
        whole = xi is None or hosted.draws.batch_size is None
        picks: Any = chosen
        if chosen is None:
            picks = range(counts[row]) if whole else hosted.draws.indices(*(xi or (0, 0)))[row]
        if hosted.per_batch:
            return call(rows, data, to_indices(picks, hosted.site.device), client)
        total = call(rows, data, int(picks[0]), client)
        for pick in picks[1:]:
            total = total + call(rows, data, int(pick), client)
        return total / len(picks) if len(picks) > 1 else total

    def _alone(self, row: int, rows: Rows, xi: Xi | None) -> Rows:
        """Return the value or the gradients of one client."""
        client = self._hosted.site.hosted[row]
        with self._generators.at(client, xi or (0, 0)):
            return self._differentiated(lambda leaves: self._value(row, leaves, xi), rows)

    def _differentiated(self, value: Callable[[Rows], Tensor], rows: Rows) -> Rows:
        if not self._gradients:
            return (value(rows),)
        again = any(row.requires_grad for row in rows)  # for second derivatives
        leaves = rows if again else tuple(row.detach().requires_grad_() for row in rows)
        with torch.enable_grad():
            loss = value(leaves).sum()
            if not loss.requires_grad:
                raise InputError(
                    f"{self._function.what} returned a value that torch cannot differentiate; "
                    "compute it from the variables with torch's functions"
                )
            grads = torch.autograd.grad(loss, leaves, create_graph=again, materialize_grads=True)
        return tuple(grads)

    def _full_of(self, row: int, rows: Rows, step: int) -> tuple[Rows, bool]:
        """Return the value of one client on all its data, and whether it is random."""
        hosted = self._hosted
        client, data = hosted.site.hosted[row], hosted.data.of_client[row]
        if hosted.draws.counts is not None:
            with self._generators.at(client, (step, 0)):
                watch = Watch(None)
                value = self._differentiated(lambda leaves: self._value(row, leaves, None), rows)
                return value, watch.drew
        if hosted.mean_draws is not None:
            draws = [(0, TRIAL[1] + k) for k in range(1, hosted.mean_draws + 1)]
            values = [self._alone(row, rows, xi) for xi in draws]
            means = tuple(torch.stack(parts).mean(0) for parts in zip(*values, strict=True))
            return means, True
        rng = hosted.draws.generator(self._rng, client, step, 0)
        if self._rng == "numpy":
            rng = WatchedGenerator(rng.bit_generator)
        with self._generators.at(client, (step, 0)):
            watch = Watch(rng)
            call = self._function.named
            value = self._differentiated(lambda leaves: call(leaves, data, rng, client), rows)
            return value, watch.drew
