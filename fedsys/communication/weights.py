"""How much each hosted client counts in an average: all of them, those of a round, the finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedsys.random import generator


class Weights:
    """The weights of the hosted clients in one average; a client with weight 0 sends nothing."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = list(values)
        self._rows: dict[torch.dtype, Tensor] = {}

    @cached_property
    def present(self) -> list[int] | None:
        """The rows that count, or None for all."""
        return [i for i, w in enumerate(self.values) if w] if 0.0 in self.values else None

    def row(self, like: Tensor) -> Tensor:
        """The weights of the present rows as a tensor [1, rows] of the same kind."""
        row = self._rows.get(like.dtype)
        if row is None:
            row = self._rows[like.dtype] = like.new_tensor([[w for w in self.values if w]])
        return row

    def of_finite(self, fields: Sequence[Tensor]) -> tuple[Weights, list[int]]:
        """Without the clients that hand in a NaN or an infinity, and the rows of those."""
        finite = torch.stack([f.reshape(len(f), -1).isfinite().all(1) for f in fields]).all(0)
        kept = finite.tolist()
        pairs = list(zip(self.values, kept, strict=True))
        dropped = [i for i, (weight, is_finite) in enumerate(pairs) if weight and not is_finite]
        if not dropped:
            return self, dropped
        return Weights([weight if is_finite else 0.0 for weight, is_finite in pairs]), dropped


@dataclass(frozen=True)
class Participation:
    """Which clients take part in a round: a function of (seed, step), the same on every rank.

    With equal weights, m = share M clients are drawn without replacement and count 1/m each. With
    weights w, m are drawn with replacement by the chances w, and count 1/m for each time (Li et
    al., ICLR 2020, Scheme I). Both averages are unbiased, and of weights that sum to one.
    """

    share: float
    weights: Sequence[float]
    """Of all clients."""
    seed: int

    @property
    def drawn(self) -> int:
        """m."""
        return max(1, round(self.share * len(self.weights)))

    def at(self, step: int) -> np.ndarray:
        """The weights of all clients in the round that ends with iteration `step`."""
        numbers = generator(self.seed, "participation", step=step)
        clients = len(self.weights)
        if len(set(self.weights)) == 1:
            chosen = numbers.choice(clients, self.drawn, replace=False)
        else:
            chances = np.array(self.weights) / sum(self.weights)
            chosen = numbers.choice(clients, self.drawn, p=chances)
        counts: np.ndarray = np.bincount(chosen, minlength=clients)
        return counts / self.drawn
