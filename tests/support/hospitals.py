"""Clients that own their data: Gaussian features of different sizes and shares of positives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import fedsys
from fedsys.core.site import Site
from fedsys.data import Dataset, NoPartition
from fedsys.models import MLP
from fedsys.problems import DeepAUC


@dataclass(frozen=True)
class Hospitals:
    """A data set of which each client has 40 training samples, and a test part of its own.

    Args:
        test: the number of test samples of each client.
        single: a client whose test samples are of one class, or None.
    """

    test: tuple[int, ...] = (30, 17, 25)
    single: int | None = None
    is_owned = True

    def load(self) -> Dataset:
        """Read the parts of all clients."""
        return self.load_owned(Site())

    def load_owned(self, site: Site) -> Dataset:
        """Read the parts of the clients hosted at a site."""
        parts = {"train": [], "test": []}  # type: ignore[var-annotated]
        for client in site.hosted:
            for part, size in (("train", 40), ("test", self.test[client])):
                stream = np.random.default_rng([client, size, part == "test"])
                labels = (np.arange(size) % (client + 2) == 0).astype(np.int64)
                if part == "test" and client == self.single:
                    labels[:] = 1
                inputs = stream.normal(size=(size, 4)) + labels[:, None] * (0.2 + 0.3 * client)
                parts[part].append((inputs, labels, np.full(size, client)))
        train, test = (
            [torch.from_numpy(np.concatenate(column)) for column in zip(*rows, strict=True)]
            for rows in parts.values()
        )
        return Dataset(*train[:2], *test[:2], 2, train_owners=train[2], test_owners=test[2])


def hospital_problem(
    data: Hospitals | None = None, evaluation: str = "auto", **options: object
) -> DeepAUC:
    """Deep AUC maximisation with a small network on data that clients own."""
    return DeepAUC(
        data or Hospitals(),
        NoPartition(),
        MLP([3]),
        8,
        evaluation=evaluation,
        **options,  # type: ignore[arg-type]
    )


def hospital_run(problem: DeepAUC, rounds: int = 3, local_steps: int = 2) -> fedsys.Result:
    """Train for some rounds on three clients."""
    algorithm = fedsys.algorithms.LocalSGDA(lr_x=0.1, lr_y=0.1, local_steps=local_steps)
    return fedsys.run(problem, algorithm, rounds=rounds, clients=3, dtype="float64")
