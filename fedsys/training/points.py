"""The points at which a run is evaluated: shared entries are averaged, private ones are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsys.communication import Communicator
from fedsys.core.algorithm import Algorithm, State
from fedsys.core.oracles import Oracle, Stateful


@dataclass(frozen=True)
class Points:
    """Averages the clients' points [C, d], except for the algorithm's private entries.

    Every method is collective and takes the number of steps after which the point was reached.
    """

    algorithm: Algorithm[Any, Any]
    oracle: Oracle
    communicator: Communicator

    def outputs(self, state: State, steps: int) -> dict[str, Tensor]:
        """Return the points [C, d] to evaluate a state at, by the prefix of their metrics."""
        return {name: self.shared(z, steps) for name, z in self.algorithm.outputs(state).items()}

    def shared(self, z: Tensor, steps: int) -> Tensor:
        """Return rows [C, d]: the mean of the shared entries, and each client's private entries."""
        shared, private = self._split(z, steps)
        mean = self.communicator.unmetered()(shared)
        return torch.cat([mean, private], dim=1) if private.shape[1] else mean

    def of_all_clients(self, z: Tensor, steps: int) -> Tensor:
        """Return the point [d], or [M, d] if clients have private entries."""
        shared, private = self._split(z, steps)
        if not private.shape[1]:
            return z[0]
        rows = self.communicator.unmetered().gather(private)
        return torch.cat([shared[:1].expand(len(rows), -1), rows], dim=1)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """Return the variables, and the buffers that they were evaluated with, by name."""
        if isinstance(self.oracle, Stateful):
            return self.oracle.trained(z, self.communicator.unmetered())
        return self.oracle.named(z)

    def are_finite(self, z: Tensor, steps: int) -> bool:
        """Return whether a point from `shared` is finite for all clients; the same on all ranks."""
        shared, private = self._split(z, steps)
        finite = bool(shared[0].isfinite().all())
        if private.shape[1]:
            finite = finite and bool(self.communicator.unmetered()(private)[0].isfinite().all())
        return finite

    def drift(self, z: Tensor, steps: int) -> float:
        """Return the mean squared distance of the clients' shared entries to their mean."""
        shared, _ = self._split(z, steps)
        unmetered = self.communicator.unmetered()
        distances = (shared - unmetered(shared)).square().sum(1, keepdim=True)
        return float(unmetered(distances)[0])

    def _split(self, z: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        private = self.algorithm.private_size(self.oracle, steps)
        shared, own = z.split_with_sizes([z.shape[1] - private, private], dim=1)
        return shared, own
