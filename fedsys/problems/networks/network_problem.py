"""The base class of problems that train a network on a data set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn

from fedsys.clients.client_data import ClientData
from fedsys.clients.mapping import require_way
from fedsys.clients.seeded import seeded_build
from fedsys.core.errors import InputError, require
from fedsys.core.fields import Checked
from fedsys.core.site import Site
from fedsys.data import IID, Dataset, DatasetSource, Digits, NoPartition, OwnedSource, Partition
from fedsys.models import MLP, ModelSource


@dataclass(frozen=True)
class NetworkProblem(Checked):
    """A network, and a data set that is partitioned over the clients.

    Args:
        dataset: the data set.
        partition: the partition of the samples over the clients.
        model: the network.
        batch_size: samples per draw, or None for all.
        vectorize: how a rank computes the clients that it hosts: "vmap" for all at once, "loop" for
            one after another, "auto" for all at once where that is faster
            (fedsys/clients/mapping.py).
        compile: the backend of torch.compile for the network, such as "inductor"; None for no
            compilation. It has no effect on dense networks whose derivatives are in closed form.
    """

    dataset: DatasetSource = field(default_factory=Digits)
    partition: Partition = field(default_factory=IID)
    model: ModelSource = field(default_factory=MLP)
    batch_size: int | None = 32
    vectorize: str = field(default="auto", kw_only=True)
    compile: str | None = field(default=None, kw_only=True)

    differentiates_twice: ClassVar[bool] = False
    """Whether the problem needs second derivatives, which compiled networks do not have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.batch_size
        valid = size is None or size >= 1
        require(valid, type(self).__name__, "batch_size", size, "at least 1, or null for all")
        require_way(type(self).__name__, self.vectorize)
        self._require_compiler()

    def load(self, site: Site) -> Dataset:
        """Return the data set; of data that clients own, the part of the clients hosted here."""
        if isinstance(self.partition, NoPartition) and isinstance(self.dataset, OwnedSource):
            return self.dataset.load_owned(site)
        if isinstance(self.dataset, OwnedSource) and self.dataset.is_owned:
            raise InputError(
                f"{type(self).__name__}: the data set has a path for each client, so nothing is "
                "partitioned; use partition=none"
            )
        return self.dataset.load()

    def refuse_owned(self, reason: str) -> None:
        """Refuse data that clients own."""
        if isinstance(self.partition, NoPartition):
            raise InputError(
                f"{type(self).__name__} needs a data set that is partitioned ({reason}); choose "
                "another partition than none, or another problem"
            )

    def network(self, data: Dataset, outputs: int, site: Site) -> nn.Module:
        """Return the network for this data, initialised from the site's seed."""
        data.require_fits(site.dtype)
        net = seeded_build(lambda: self.model.build(data.input_shape, outputs), site.seed)
        if self.compile is not None:
            net.compile(backend=self.compile)
        return net

    def client_data(self, data: Dataset, site: Site) -> ClientData:
        """Return the data of the clients hosted at a site."""
        return ClientData.of(data, self.partition, self.batch_size, site)

    def _require_compiler(self) -> None:
        if self.compile is None:
            return
        owner = type(self).__name__
        rule = "null: compiled networks have no second derivatives"
        require(not self.differentiates_twice, owner, "compile", self.compile, rule)
        # Only queried if needed, because the import of the compiler takes seconds.
        known = torch.compiler.list_backends(exclude_tags=())
        require(self.compile in known, owner, "compile", self.compile, "one of " + ", ".join(known))
