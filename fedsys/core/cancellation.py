"""Cooperative cancellation of long computations.

An evaluation iterates over its samples in chunks: `for chunk in cancellable(chunks)`. Inside
`cancelled_if(condition)` the loop checks the condition before each chunk. Outside of it,
`cancellable` yields the chunks and checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Chunk = TypeVar("Chunk")

_condition: ContextVar[Callable[[], bool] | None] = ContextVar("condition", default=None)


class CancelledError(Exception):
    """The computation was cancelled; its partial results must be discarded."""


@contextmanager
def cancelled_if(condition: Callable[[], bool]) -> Iterator[None]:
    """Cancel the enclosed computation as soon as `condition()` is true."""
    token = _condition.set(condition)
    try:
        yield
    finally:
        _condition.reset(token)


def cancellable(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the chunks; raise `CancelledError` before a chunk if the condition is true."""
    condition = _condition.get()
    for chunk in chunks:
        if condition is not None and condition():
            raise CancelledError
        yield chunk
