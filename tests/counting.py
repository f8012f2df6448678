"""A transport that remembers what was sent through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedsys.communication import LocalTransport, Transport


class CountingTransport:
    """Any transport, with a list of (collective, bytes of this rank's buffer)."""

    def __init__(self, inner: Transport | None = None) -> None:
        self._inner = inner or LocalTransport()
        self.rank, self.size = self._inner.rank, self._inner.size
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, verb: str) -> Callable[[Any], Any]:
        collective = getattr(self._inner, verb)

        def counted(value: Any) -> Any:
            size = value.numel() * value.element_size() if isinstance(value, Tensor) else 0
            self.calls.append((verb.removesuffix("_int"), size))
            return collective(value)

        return counted

    def take(self) -> Counter[str]:
        """How often each collective was called since the last time."""
        counts = Counter(verb for verb, _ in self.calls)
        self.calls.clear()
        return counts
