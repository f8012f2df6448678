"""Which client gets which training samples: a pure function of (labels, clients, seed)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedsys.errors import InputError
from fedsys.random import generator


class Partition(Protocol):
    """What a configuration of the group `partition` builds."""

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """The indices of each client's samples."""


@dataclass(frozen=True)
class IID:
    """Every client gets the same number of samples (up to one), drawn without replacement."""

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Cut one permutation into `clients` parts."""
        order = generator(seed, "partition").permutation(len(labels))
        return [np.sort(part) for part in np.array_split(order, clients)]


def refuse_empty_clients(parts: list[np.ndarray]) -> None:
    """An empty client cannot take a step."""
    empty = [client for client, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise InputError(
            f"client {empty[0]} has no training sample ({sum(map(len, parts))} samples over "
            f"{len(parts)} clients); use fewer clients or another partition"
        )
