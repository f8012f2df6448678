"""The weights of the clients in a mean: all clients, those of a round, the finite ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedsys.core.random import generator


class Weights:
    """The weights of the hosted clients in one mean; a client with weight 0 sends nothing.

    Args:
        values: one weight for each hosted client.
    """

    def __init__(self, values: Sequence[float]) -> None:
        self.values = list(values)
        self._rows: dict[torch.dtype, Tensor] = {}

    @cached_property
    def present(self) -> list[int] | None:
        """The rows with a positive weight, or None if all have one."""
        return [i for i, w in enumerate(self.values) if w] if 0.0 in self.values else None

    def row(self, like: Tensor) -> Tensor:
        """Return the positive weights as a tensor [1, rows] with the dtype and device of `like`."""
        row = self._rows.get(like.dtype)
        if row is None:
            row = self._rows[like.dtype] = like.new_tensor([[w for w in self.values if w]])
        return row

    def of_finite(self, fields: Sequence[Tensor]) -> tuple[Weights, list[int]]:
        """Return weights with 0 for clients whose fields are not finite, and the rows of those."""
        finite = torch.stack([f.reshape(len(f), -1).isfinite().all(1) for f in fields]).all(0)
        kept = finite.tolist()
        pairs = list(zip(self.values, kept, strict=True))
        dropped = [i for i, (weight, is_finite) in enumerate(pairs) if weight and not is_finite]
        if not dropped:
            return self, dropped
        return Weights([weight if is_finite else 0.0 for weight, is_finite in pairs]), dropped


@dataclass(frozen=True)
class Participation:
    """The clients that take part in a round: a function of (seed, step), the same on every rank.

    With equal weights, m = share M clients are drawn without replacement and weigh 1/m each. With
    weights w, m clients are drawn with replacement with probabilities w, and weigh 1/m for each
    time they are drawn (Li et al., On the Convergence of FedAvg on Non-IID Data, ICLR 2020,
    arXiv:1907.02189, Scheme I). Both means are unbiased, and their weights sum to one.

    Args:
        share: the share of the clients that take part, in (0, 1].
        weights: the weights of all clients.
        seed: the seed of the draws.
    """

    share: float
    weights: Sequence[float]
    seed: int

    @property
    def drawn(self) -> int:
        """The number m of draws in a round."""
        return max(1, round(self.share * len(self.weights)))

    def at(self, step: int) -> np.ndarray:
        """Return the weights [M] of all clients in the round that ends with iteration `step`."""
        numbers = generator(self.seed, "participation", step=step)
        clients = len(self.weights)
        if len(set(self.weights)) == 1:
            chosen = numbers.choice(clients, self.drawn, replace=False)
        else:
            chances = np.array(self.weights) / sum(self.weights)
            chosen = numbers.choice(clients, self.drawn, p=chances)
        counts: np.ndarray = np.bincount(chosen, minlength=clients)
        return counts / self.drawn
