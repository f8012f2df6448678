"""The random draws of a user's functions: samples of a finite sum, or a generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsys.clients.batches import Batches
from fedsys.core.errors import require
from fedsys.core.random import Streams, generator
from fedsys.core.site import Site
from fedsys.problems.stepping import GivenDraws, given_picks

Samples = int | Callable[[int], int] | None
"""The number of samples of each client: one number, or a function of the client."""

SAMPLINGS = ("replacement", "epochs")
GENERATORS = ("numpy", "torch")


class Draws:
    """The draws (step, k) of the hosted clients.

    If samples are declared, a draw consists of `batch_size` of them: uniform with replacement, or
    in epochs, each of which has every sample once in a new order.

    Args:
        owner: the problem's name, for error messages.
        site: the hosted clients and the seed.
        samples: the number of samples of each client; None if the functions are no finite sums.
        batch_size: the number of samples per draw; None for all of them.
        sampling: "replacement" or "epochs".
    """

    def __init__(
        self, owner: str, site: Site, samples: Samples, batch_size: int | None, sampling: str
    ) -> None:
        self._site, self.batch_size = site, batch_size
        valid = batch_size is None or (_is_int(batch_size) and batch_size >= 1)
        require(valid, owner, "batch_size", batch_size, "a positive integer or None")
        require(sampling in SAMPLINGS, owner, "sampling", sampling, " or ".join(SAMPLINGS))
        self.counts: list[int] | None = None
        if samples is not None:
            self.counts = [_count(owner, samples, client) for client in site.hosted]
        self.given: GivenDraws | None = None
        self._streams = Streams(site.seed, "function")
        self._epochs: Batches | None = None
        if sampling == "epochs" and self.finite_sum:
            everything = torch.arange(sum(self.counts or ()))
            self._epochs = Batches(
                everything, everything, self.counts or (), site.hosted, batch_size, site.seed
            )

    @property
    def finite_sum(self) -> bool:
        """Whether a draw is a random sample of a declared finite sum."""
        return self.counts is not None and self.batch_size is not None

    @property
    def sizes(self) -> list[int]:
        """The number of samples of each hosted client; 1 if none are declared."""
        return [1] * len(self._site.hosted) if self.counts is None else self.counts

    @property
    def common_count(self) -> int | None:
        """The number of samples if all hosted clients have the same number, else None."""
        counts = {*(self.counts or ())}
        return counts.pop() if len(counts) == 1 else None

    def indices(self, step: int, k: int) -> np.ndarray:
        """Return the samples of a draw, [C, B]."""
        assert self.counts is not None
        assert self.batch_size is not None
        if self.given is not None:
            clients, size = self._site.hosted, self.batch_size
            return given_picks(self.given, clients, self.counts, step, k, size)
        if self._epochs is not None:
            starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
            places = self._epochs.indices(step, k, self.batch_size).numpy()
            epoch: np.ndarray = places.reshape(len(self.counts), -1) - starts[:, None]
            return epoch
        rows = zip(self._site.hosted, self.counts, strict=True)
        at, size = self._streams.at, self.batch_size
        return np.stack([at(client, step, k).integers(n, size=size) for client, n in rows])

    def generator(self, kind: str, client: int, step: int, k: int) -> Any:
        """Return the generator of a client's draw, NumPy's or torch's."""
        if kind == "numpy":
            return generator(self._site.seed, "function", client, step, k)
        seed = int(self._streams.at(client, step, k).integers(2**62))
        return torch.Generator(self._site.device).manual_seed(seed)


class WatchedGenerator(np.random.Generator):
    """A generator that records whether it is used; an unused one cannot affect the value."""

    def __getattribute__(self, name: str) -> Any:
        if name != "__class__":  # isinstance() reads it without drawing
            object.__setattr__(self, "_used", True)
        return super().__getattribute__(name)


class Watch:
    """Whether a call drew random numbers, from its own generator or from the global ones."""

    def __init__(self, rng: Any) -> None:
        self._rng = rng
        self._before = _global_state()
        self._state = rng.get_state() if isinstance(rng, torch.Generator) else None

    @property
    def drew(self) -> bool:
        """Whether random numbers were drawn since the watch was made."""
        if isinstance(self._rng, WatchedGenerator):
            own = "_used" in object.__getattribute__(self._rng, "__dict__")
        elif self._state is not None:
            own = not torch.equal(self._state, self._rng.get_state())
        else:
            own = False
        return own or _global_state() != self._before


def unused_generator(kind: str) -> Any:
    """Return a generator for a function that ignores it; a `Watch` tells whether it does."""
    return torch.Generator() if kind == "torch" else WatchedGenerator(np.random.Philox(0))


def _global_state() -> tuple[object, ...]:
    """Return the state of the global generators, which no client's function should depend on."""
    _, key, *position = np.random.get_state(legacy=True)
    return torch.get_rng_state().numpy().tobytes(), np.asarray(key).tobytes(), position


def to_indices(picks: np.ndarray | Sequence[int], device: torch.device) -> Tensor:
    """Return indices as a tensor of 64-bit integers."""
    return torch.as_tensor(np.asarray(picks), dtype=torch.int64, device=device)


def _count(owner: str, samples: int | Callable[[int], int], client: int) -> int:
    count = samples(client) if callable(samples) else samples
    where = f"samples of client {client}" if callable(samples) else "samples"
    require(_is_int(count) and count >= 1, owner, where, count, "a positive integer")
    return int(count)


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
