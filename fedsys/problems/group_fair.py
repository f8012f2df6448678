"""Group-fair classification (fedbio.txt, eq. 48): bilevel in the groups' weights, or one level."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from fedsys.data import DatasetSource
from fedsys.data.partition import deal
from fedsys.data.tables import Adult, GroupedDataset
from fedsys.errors import InputError, require
from fedsys.models import MLP, ModelSource
from fedsys.problems.group_oracles import BilevelFairOracle, GroupedOracle, Judge
from fedsys.problems.network_problem import NetworkProblem
from fedsys.problems.site import Site
from fedsys.problems.stacked import (
    StackedBatches,
    stacked_model,
)
from fedsys.random import generator


@dataclass(frozen=True)
class GroupFair(NetworkProblem):
    """A binary classifier that should treat groups alike.

    Bilevel methods learn the groups' weights: each client puts samples of every group aside for f,
    which weights them so that every group counts alike, and trains on the rest. The others train on
    all of it.

    A client with fewer than two samples of a group keeps them for training: its validation part is
    balanced over the other groups. A group that no client could validate is refused, and so is a
    client that could validate none.

    Args:
        dataset: a table with groups.
        partition: which client gets which.
        model: the classifier, with one output.
        batch_size: samples per draw, or None for all.
        l2: the weight of |y|^2 / 2 in the training loss.
        validation_per_group: at most this many, and never more than half of a client's.
        validation: what is balanced: "all" is the groups, "labels" both labels of every group (the
            paper's n_sa), "positives" the groups among positives, of which EqOpp speaks.
    """

    dataset: DatasetSource = field(default_factory=Adult)
    model: ModelSource = field(default_factory=lambda: MLP(hidden=[]))
    batch_size: int | None = 128
    l2: float = 1e-3
    validation_per_group: int = 50
    validation: str = "all"

    kinds: ClassVar[tuple[str, ...]] = ("bilevel", "grouped", "minimisation")
    differentiates_twice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.validation_per_group
        require(self.l2 >= 0, "group_fair", "l2", self.l2, "at least 0")
        require(most >= 1, "group_fair", "validation_per_group", most, "at least 1")
        known = ("all", "labels", "positives")
        rule = "one of " + ", ".join(known)
        require(self.validation in known, "group_fair", "validation", self.validation, rule)

    def oracle(self, site: Site) -> BilevelFairOracle | GroupedOracle:
        """The oracle of the clients hosted at a site, for the level that the algorithm asks for."""
        data = self.dataset.load()
        if not isinstance(data, GroupedDataset):
            raise InputError(
                f"group_fair needs samples that belong to groups, which "
                f"{type(self.dataset).__name__} has not; use dataset=adult or dataset=german"
            )
        groups = data.train_groups.numpy()
        dealt = deal(data, self.partition, site.placement.clients, site.seed)
        parts = dealt.parts
        model = stacked_model(self.network(data, 1, site), site, self.vectorize)
        whole = self._batches(data, parts, site)
        if site.kind != "bilevel":
            return GroupedOracle(site, model, whole, self.l2, Judge(data, dealt, whole, site))
        most = self.validation_per_group
        labels = data.train_labels.numpy()
        cells = 2 * groups + labels if self.validation == "labels" else groups
        fit = [p[labels[p] == 1] if self.validation == "positives" else p for p in parts]
        held = [_set_aside(part, cells, most, site.seed, c) for c, part in enumerate(fit)]
        _refuse_unvalidated(held, data)
        rest = [np.setdiff1d(part, mine) for part, mine in zip(parts, held, strict=True)]
        train, validation = self._batches(data, rest, site), self._batches(data, held, site, cells)
        judge = Judge(data, dealt, whole, site, held)
        return BilevelFairOracle(site, model, train, validation, self.l2, judge)

    def _batches(
        self,
        data: GroupedDataset,
        parts: list[np.ndarray],
        site: Site,
        cells: np.ndarray | None = None,
    ) -> StackedBatches:
        """The samples of the hosted clients; if there are cells, each of these counts alike."""
        mine = [torch.from_numpy(parts[client]) for client in site.hosted]
        mass = None
        if cells is not None:
            mass = [torch.from_numpy(_even_mass(cells[parts[client]])) for client in site.hosted]
        fields = (data.train_inputs, data.train_labels, data.train_groups)
        inputs, labels, groups = ([values[index] for index in mine] for values in fields)
        return StackedBatches(site, inputs, labels, groups, self.batch_size, mass)


def _even_mass(cells: np.ndarray) -> np.ndarray:
    """Masses that sum up to 1, and to the same in every cell."""
    _, cell, counts = np.unique(cells, return_inverse=True, return_counts=True)
    mass: np.ndarray = 1 / (len(counts) * counts[cell])
    return mass


def _set_aside(
    part: np.ndarray, groups: np.ndarray, most: int, seed: int, client: int
) -> np.ndarray:
    """Up to half of one client's samples of each of its groups."""
    order = generator(seed, "validation", client).permutation(part)
    members = [order[groups[order] == group] for group in np.unique(groups[order])]
    members = [m for m in members if len(m) >= 2]
    if not members:
        raise InputError(
            f"group_fair: client {client} has no group with two samples to put one aside for "
            "validation; use fewer clients or another partition"
        )
    return np.sort(np.concatenate([m[: min(most, len(m) // 2)] for m in members]))


def _refuse_unvalidated(held: list[np.ndarray], data: GroupedDataset) -> None:
    present = np.unique(data.train_groups.numpy()[np.concatenate(held)])
    for index, name in enumerate(data.group_names):
        if index not in present:
            raise InputError(
                f"group_fair: no client has two samples of group {name}, so that its weight cannot "
                "be learned; use fewer clients or another partition"
            )
