"""Small values that ranks exchange: JSON, checked when it arrives. No code travels.

A value consists of None, booleans, numbers, strings, lists and dictionaries with string keys.
Tuples arrive as lists. Floats keep every bit, including infinities and NaN.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from fedsys.core.errors import FedsysError

Value = TypeVar("Value")
Parse = Callable[[Any], Value]
"""Return the value if it has the expected form; otherwise raise TypeError or ValueError."""

MAX_BYTES = 2**24
"""The limit of one message; the largest in use, the weights of 100,000 clients, takes 2 MB."""
_MALFORMED = (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError)


def encode(value: Any) -> bytes:
    """Return the message that carries `value`."""
    message = json.dumps(value, separators=(",", ":")).encode()
    if len(message) > MAX_BYTES:
        raise FedsysError(f"a message may have {MAX_BYTES} bytes at most, got {len(message)}")
    return message


def decode(message: bytes, parse: Parse[Value], rank: int) -> Value:
    """Return what `rank` sent, or raise an error that names the rank."""
    try:
        return parse(json.loads(message.decode()))
    except _MALFORMED as error:
        raise malformed(rank, f"{type(error).__name__}: {error}") from None


def malformed(rank: int, reason: str) -> FedsysError:
    """Return the error for an unreadable message of `rank`; another rank reports it."""
    return FedsysError(
        f"rank {rank} sent a message that is not the expected JSON ({reason[:200]}); "
        "run the same version of fedsys on all ranks",
        reporter=1 if rank == 0 else 0,
    )


def boolean(value: Any) -> bool:
    """Accept true and false."""
    return _of(bool, value)


def integer(value: Any) -> int:
    """Accept an integer, but no boolean."""
    if isinstance(value, bool):
        raise TypeError("a boolean where an integer is expected")
    return _of(int, value)


def real(value: Any) -> float:
    """Accept any number."""
    return integer(value) if isinstance(value, int) else _of(float, value)


def text(value: Any) -> str:
    """Accept a string without NUL characters."""
    if "\0" in _of(str, value):
        raise ValueError("a NUL character in a string")
    return str(value)


def list_of(parse: Parse[Value]) -> Parse[list[Value]]:
    """Accept a list, each element of which `parse` accepts."""
    return lambda value: [parse(element) for element in _of(list, value)]


def dict_of(parse: Parse[Value]) -> Parse[dict[str, Value]]:
    """Accept a dictionary, each value of which `parse` accepts."""
    return lambda value: {text(key): parse(one) for key, one in _of(dict, value).items()}


def optional(parse: Parse[Value]) -> Parse[Value | None]:
    """Accept null, or what `parse` accepts."""
    return lambda value: None if value is None else parse(value)


def _of(kind: type[Value], value: Any) -> Value:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where {kind.__name__} is expected")
    return value
