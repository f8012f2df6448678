"""A transport that counts its collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedsys.communication import LocalTransport, Transport


class CountingTransport:
    """Record (collective, bytes of this rank's buffer) for each call of another transport."""

    def __init__(self, inner: Transport | None = None) -> None:
        self._inner = inner or LocalTransport()
        self.rank, self.size = self._inner.rank, self._inner.size
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        collective = getattr(self._inner, verb)

        def counted(value: Any, *options: Any) -> Any:
            size = value.numel() * value.element_size() if isinstance(value, Tensor) else 0
            self.calls.append((verb.removesuffix("_int"), size))
            return collective(value, *options)

        return counted

    def take(self) -> Counter[str]:
        """Return how often each collective was called since the last `take`."""
        counts = Counter(verb for verb, _ in self.calls)
        self.calls.clear()
        return counts
