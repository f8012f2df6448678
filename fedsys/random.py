"""Counter-based randomness: a number depends on what it is for, never on who drew before.

Every stream is a Philox generator whose key is (seed, purpose) and whose counter starts at
(client, step, k). Hence the draws of a client are the same on any rank, in any order, and after
any restart.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_Draw = Callable[[np.random.Generator], np.ndarray]

BLOCK = 64
"""Consecutive steps whose small draws come from one generator: the cost is paid once a block."""
_BLOCK_NUMBERS = 2**16


def generator(
    seed: int, purpose: str, client: int = 0, step: int = 0, k: int = 0
) -> np.random.Generator:
    """The stream of (seed, client, step, k) for one purpose, such as "batches" or "noise"."""
    key = np.array([seed, zlib.crc32(purpose.encode())], dtype=np.uint64)
    # The lowest counter word counts the numbers drawn, so neighbouring streams never overlap.
    counter = np.array([0, k, step, client], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Streams:
    """The streams of one purpose, by one generator that is set to where each of them begins.

    A third of the cost of making each: for those that are opened once per client.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._generator = generator(seed, purpose)
        self._begin: dict[str, Any] = dict(self._generator.bit_generator.state)

    def at(self, client: int, step: int, k: int) -> np.random.Generator:
        """`generator(seed, purpose, client, step, k)`, until the next call."""
        self._begin["state"]["counter"][:] = (0, k, step, client)
        self._generator.bit_generator.state = self._begin
        return self._generator


class BlockedDraws:
    """Small draws of the hosted clients, made for `BLOCK` steps at a time.

    Each is a pure function of (seed, purpose, client, step, k); the cache only saves time.
    """

    def __init__(self, seed: int, purpose: str, clients: Sequence[int]) -> None:
        self._seed, self._purpose, self._clients = seed, purpose, clients
        self._cache: dict[int, tuple[int, np.ndarray]] = {}

    def integers(self, step: int, k: int, high: int, size: int = 1) -> np.ndarray:
        """Uniform integers in [0, high) for each client: shape [C, size]."""
        length = _block_length(size)
        return self._rows(step, k, length, lambda g: g.integers(high, size=(length, size)))

    def normal(self, step: int, k: int, size: int) -> np.ndarray:
        """Standard normal vectors, one for each client: shape [C, size]."""
        length = _block_length(size)
        return self._rows(step, k, length, lambda g: g.standard_normal((length, size)))

    def _rows(self, step: int, k: int, length: int, draw: _Draw) -> np.ndarray:
        block, offset = divmod(step, length)
        cached = self._cache.get(k)
        if cached is None or cached[0] != block:
            streams = (generator(self._seed, self._purpose, c, block, k) for c in self._clients)
            cached = (block, np.stack([draw(stream) for stream in streams], axis=1))
            self._cache[k] = cached
        rows: np.ndarray = cached[1][offset]
        return rows


def _block_length(size: int) -> int:
    """As many steps as a block may have; few for long vectors, lest they fill the memory."""
    return max(1, min(BLOCK, _BLOCK_NUMBERS // size))
