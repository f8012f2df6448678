"""Call a user's function of one client, with a random generator or with samples of a finite sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsys.clients.forward_pass import ForwardGenerators
from fedsys.core.errors import require
from fedsys.core.random import generator
from fedsys.core.site import Site

Samples = int | Callable[[int], int] | None
"""The number of samples of each client: one number, or a function of the client."""

ClientFunction = Callable[..., Tensor]
"""function(*variables, client, rng), or function(*variables, client, sample) of a finite sum."""


@dataclass(frozen=True)
class FullDraw:
    """All samples of a client, for full operators and metrics at iteration `step`."""

    step: int


class ClientFunctions:
    """Call functions of single clients at draws (step, k), or on all samples of a client.

    If samples are declared, a draw consists of `batch_size` of them, uniform with replacement, and
    the value is their mean. Otherwise the function gets the generator of the draw.

    Args:
        owner: the problem's name, for error messages.
        site: the hosted clients, the seed, and the dtype and device of tensors.
        samples: the number of samples of each client; None if the functions are no finite sums.
        batch_size: the number of samples per draw; None for all of them.
    """

    def __init__(self, owner: str, site: Site, samples: Samples, batch_size: int | None) -> None:
        self._seed = site.seed
        # A function may call a module that draws from torch's generator, such as Dropout.
        self._generators = ForwardGenerators(site.seed, site.device)
        self._batch_size = batch_size
        valid = batch_size is None or (_is_int(batch_size) and batch_size >= 1)
        require(valid, owner, "batch_size", batch_size, "a positive integer or None")
        self.counts: dict[int, int] | None = None
        if samples is not None:
            self.counts = {client: _count(owner, samples, client) for client in site.hosted}

    @property
    def finite_sum(self) -> bool:
        """Whether a draw is a random sample of a declared finite sum."""
        return self.counts is not None and self._batch_size is not None

    def sizes(self, hosted: Iterable[int]) -> list[int]:
        """Return the number of samples of each hosted client; 1 if none are declared."""
        return [1 if self.counts is None else self.counts[client] for client in hosted]

    def mean(
        self,
        function: ClientFunction,
        variables: tuple[Tensor, ...],
        client: int,
        xi: tuple[int, int] | FullDraw,
    ) -> Tensor:
        """Return the function of one client, averaged over the samples of a draw."""
        with self._generators.at(client, _step_and_k(xi)):
            return self._mean(function, variables, client, xi)

    def _mean(
        self,
        function: ClientFunction,
        variables: tuple[Tensor, ...],
        client: int,
        xi: tuple[int, int] | FullDraw,
    ) -> Tensor:
        if self.counts is None:
            step, k = _step_and_k(xi)
            rng = generator(self._seed, "function", client, step, k)
            return function(*variables, client, rng)
        samples = self._samples(client, xi)
        total = function(*variables, client, samples[0])
        for sample in samples[1:]:
            total = total + function(*variables, client, sample)
        return total / len(samples) if len(samples) > 1 else total

    def full(
        self, function: ClientFunction, variables: tuple[Tensor, ...], client: int, step: int
    ) -> tuple[Tensor, bool]:
        """Return the function on all of a client's data, and whether it is a random estimate."""
        with self._generators.at(client, (step, 0)):
            before = _global_state()
            if self.counts is not None:
                value = self._mean(function, variables, client, FullDraw(step))
                return value, _global_state() != before
            plain = generator(self._seed, "function", client, step, 0)
            rng = _WatchedGenerator(plain.bit_generator)
            value = function(*variables, client, rng)
            return value, _was_used(rng) or _global_state() != before

    def _samples(self, client: int, xi: tuple[int, int] | FullDraw) -> list[int]:
        assert self.counts is not None
        count = self.counts[client]
        if isinstance(xi, FullDraw) or self._batch_size is None:
            return list(range(count))
        rng = generator(self._seed, "function", client, *xi)
        return [int(sample) for sample in rng.integers(count, size=self._batch_size)]


def _step_and_k(xi: tuple[int, int] | FullDraw) -> tuple[int, int]:
    return (xi.step, 0) if isinstance(xi, FullDraw) else xi


def labelled(name: str, noisy: bool) -> str:
    """Return the name of a metric, with a prefix if its value is that of one random draw."""
    return f"sampled_{name}" if noisy else name


class _WatchedGenerator(np.random.Generator):
    """A generator that records whether it is used; an unused one cannot affect the value."""

    def __getattribute__(self, name: str) -> Any:
        if name != "__class__":  # isinstance() reads it without drawing
            object.__setattr__(self, "_used", True)
        return super().__getattribute__(name)


def _was_used(rng: np.random.Generator) -> bool:
    return "_used" in object.__getattribute__(rng, "__dict__")


def _global_state() -> tuple[object, ...]:
    """Return the state of the global generators, which no client's function should depend on."""
    _, key, *position = np.random.get_state(legacy=True)
    return torch.get_rng_state().numpy().tobytes(), np.asarray(key).tobytes(), position


def _count(owner: str, samples: int | Callable[[int], int], client: int) -> int:
    count = samples(client) if callable(samples) else samples
    where = f"samples of client {client}" if callable(samples) else "samples"
    require(_is_int(count) and count >= 1, owner, where, count, "a positive integer")
    return int(count)


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
