"""Group-fair classification, as a bilevel problem in the groups' weights or with a single level.

Junyi Li, Feihu Huang, Heng Huang. Local Stochastic Bilevel Optimization with Momentum-Based
Variance Reduction. 2022. arXiv:2205.01608, eq. (48).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from fedsys.clients.small_models import (
    StackedBatches,
    stacked_model,
)
from fedsys.core.errors import InputError, require
from fedsys.core.random import generator
from fedsys.core.site import Site
from fedsys.data import DatasetSource
from fedsys.data.partition import split_clients
from fedsys.data.sources.tables import Adult, GroupedDataset
from fedsys.models import MLP, ModelSource
from fedsys.problems.bilevel.reweighting import GroupWeighting
from fedsys.problems.fairness.group_oracles import BilevelFairOracle, GroupedOracle, GroupMetrics
from fedsys.problems.networks.network_problem import NetworkProblem


@dataclass(frozen=True)
class GroupFair(NetworkProblem):
    """A binary classifier that should treat all groups equally.

    Li et al. (2022), arXiv:2205.01608, eq. (48). Bilevel algorithms learn the groups' weights: each
    client holds out samples of every group for f, where every group has the same total weight, and
    trains on the rest. Other algorithms train on all samples.

    A client with fewer than two samples of a group keeps them for training, and its validation set
    is balanced over the other groups. It is an error if no client can validate some group, or if
    some client can validate no group.

    Args:
        dataset: a table with groups.
        partition: the partition of the samples over the clients.
        model: the classifier, with one output.
        batch_size: samples per draw, or None for all.
        l2: the weight of |y|^2 / 2 in the training loss.
        validation_per_group: the largest number of validation samples of each group at a client,
            which is never more than half of the client's samples of the group.
        validation: what is balanced: "all" for the groups (equal n_{*,a} in the paper), "labels"
            for both labels of every group, "positives" for the groups among the positives, on which
            EqOpp is defined.
        normalisation: the set over which the learned weights have mean 1: "samples" for the
            training samples of a client, "groups" for the groups (K softmax(x); raising the weight
            of a large group then also weakens the regulariser).
    """

    dataset: DatasetSource = field(default_factory=Adult)
    model: ModelSource = field(default_factory=lambda: MLP(hidden=[]))
    batch_size: int | None = 128
    l2: float = 1e-3
    validation_per_group: int = 50
    validation: str = "all"
    normalisation: str = "samples"

    kinds: ClassVar[tuple[str, ...]] = ("bilevel", "grouped", "minimisation")
    differentiates_twice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.validation_per_group
        require(self.l2 >= 0, "group_fair", "l2", self.l2, "at least 0")
        require(most >= 1, "group_fair", "validation_per_group", most, "at least 1")
        known = {
            "validation": ("all", "labels", "positives"),
            "normalisation": ("samples", "groups"),
        }
        for name, values in known.items():
            value = getattr(self, name)
            require(value in values, "group_fair", name, value, f"one of {', '.join(values)}")

    def oracle(self, site: Site) -> BilevelFairOracle | GroupedOracle:
        """Return the oracle of the hosted clients, bilevel or not as the algorithm needs it."""
        data = self.load(site)
        if not isinstance(data, GroupedDataset):
            raise InputError(
                f"group_fair needs a data set with groups, which {type(self.dataset).__name__} "
                "does not have; use dataset=adult, dataset=german, or dataset=table with "
                "dataset.group=COLUMN"
            )
        groups = data.train_groups.numpy()
        client_split = split_clients(data, self.partition, site.placement.clients, site.seed)
        parts = client_split.parts
        model = stacked_model(self.network(data, 1, site), site, self.vectorize)
        whole = self._batches(data, parts, site)
        if site.kind != "bilevel":
            return GroupedOracle(
                site, model, whole, self.l2, GroupMetrics(data, client_split, whole, site)
            )
        most = self.validation_per_group
        labels = data.train_labels.numpy()
        cells = 2 * groups + labels if self.validation == "labels" else groups
        eligible = [p[labels[p] == 1] if self.validation == "positives" else p for p in parts]
        mine = site.hosted if client_split.is_owned else range(site.placement.clients)
        held = [
            _hold_out(part, cells, most, site.seed, c) if c in mine else part
            for c, part in enumerate(eligible)
        ]
        _require_every_group(held, data, site)
        rest = [np.setdiff1d(part, mine) for part, mine in zip(parts, held, strict=True)]
        train, validation = self._batches(data, rest, site), self._batches(data, held, site, cells)
        metrics = GroupMetrics(data, client_split, whole, site, held)
        weightings = self._weightings(data, rest, site)
        return BilevelFairOracle(site, model, train, validation, self.l2, metrics, *weightings)

    def _weightings(
        self, data: GroupedDataset, parts: list[np.ndarray], site: Site
    ) -> tuple[GroupWeighting, GroupWeighting]:
        """Return the weighting of the hosted clients, and that of all training samples together."""
        if self.normalisation == "groups":
            return GroupWeighting(), GroupWeighting()
        groups, K = data.train_groups.numpy(), len(data.group_names)
        counts = np.stack([np.bincount(groups[part], minlength=K) for part in parts])
        mine, totals = counts[site.hosted.start : site.hosted.stop], counts.sum(0)
        if data.train_owners is not None:
            totals = site.peers.total(torch.from_numpy(totals)).long().numpy()
        shares = (rows / rows.sum(1, keepdims=True) for rows in (mine, totals[None]))
        hosted, pooled = (GroupWeighting(site.convert(rows)) for rows in shares)
        return hosted, pooled

    def _batches(
        self,
        data: GroupedDataset,
        parts: list[np.ndarray],
        site: Site,
        cells: np.ndarray | None = None,
    ) -> StackedBatches:
        """Return the samples of the hosted clients; all cells, if given, have equal total mass."""
        mine = [torch.from_numpy(parts[client]) for client in site.hosted]
        mass = None
        if cells is not None:
            mass = [torch.from_numpy(_equal_mass(cells[parts[client]])) for client in site.hosted]
        fields = (data.train_inputs, data.train_labels, data.train_groups)
        inputs, labels, groups = ([values[index] for index in mine] for values in fields)
        return StackedBatches(site, inputs, labels, groups, self.batch_size, mass)


def _equal_mass(cells: np.ndarray) -> np.ndarray:
    """Return masses that sum to 1, and have the same sum in every cell."""
    _, cell, counts = np.unique(cells, return_inverse=True, return_counts=True)
    mass: np.ndarray = 1 / (len(counts) * counts[cell])
    return mass


def _hold_out(
    part: np.ndarray, groups: np.ndarray, most: int, seed: int, client: int
) -> np.ndarray:
    """Return up to half of one client's samples of each of its groups."""
    order = generator(seed, "validation", client).permutation(part)
    members = [order[groups[order] == group] for group in np.unique(groups[order])]
    members = [m for m in members if len(m) >= 2]
    if not members:
        raise InputError(
            f"group_fair: client {client} has no group with two samples, one of which could be "
            "held out for validation; use fewer clients or another partition"
        )
    return np.sort(np.concatenate([m[: min(most, len(m) // 2)] for m in members]))


def _require_every_group(held: list[np.ndarray], data: GroupedDataset, site: Site) -> None:
    """Raise an error if some group has no validation sample at any client."""
    groups = data.train_groups.numpy()[np.concatenate(held)]
    counts = torch.from_numpy(np.bincount(groups, minlength=len(data.group_names)))
    if data.train_owners is not None:
        counts = site.peers.total(counts)
    for index, name in enumerate(data.group_names):
        if counts[index] == 0:
            raise InputError(
                f"group_fair: no client has two samples of group {name}, so its weight cannot be "
                "learned; use fewer clients or another partition"
            )
