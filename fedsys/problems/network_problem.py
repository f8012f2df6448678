"""What every problem of a network on data is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn

from fedsys.data import IID, Dataset, DatasetSource, Digits, Partition
from fedsys.errors import require
from fedsys.models import MLP, ModelSource
from fedsys.problems.client_data import ClientData
from fedsys.problems.mapping import require_way
from fedsys.problems.seeded import seeded_build
from fedsys.problems.site import Site


@dataclass(frozen=True)
class NetworkProblem:
    """A network, and samples that are dealt to clients.

    Args:
        dataset: where the samples come from.
        partition: which client gets which.
        model: the network.
        batch_size: samples per draw, or None for all.
        vectorize: how a rank computes the clients that it hosts: "vmap" all at once, "loop" one
            after another, "auto" at once where that pays (fedsys/problems/mapping.py).
        compile: the backend of torch.compile for the network, such as "inductor"; None: not
            compiled. Dense networks whose derivatives are written down are not run through it.
    """

    dataset: DatasetSource = field(default_factory=Digits)
    partition: Partition = field(default_factory=IID)
    model: ModelSource = field(default_factory=MLP)
    batch_size: int | None = 32
    vectorize: str = field(default="auto", kw_only=True)
    compile: str | None = field(default=None, kw_only=True)

    differentiates_twice: ClassVar[bool] = False
    """Whether it needs second derivatives of the network, which compiled ones do not have."""

    def __post_init__(self) -> None:
        size = self.batch_size
        valid = size is None or size >= 1
        require(valid, type(self).__name__, "batch_size", size, "at least 1, or null for all")
        require_way(type(self).__name__, self.vectorize)
        self._require_compiler()

    def network(self, data: Dataset, outputs: int, site: Site) -> nn.Module:
        """The model for this data, with the initial weights of the site's seed."""
        net = seeded_build(lambda: self.model.build(data.input_shape, outputs), site.seed)
        if self.compile is not None:
            net.compile(backend=self.compile)
        return net

    def client_data(self, data: Dataset, site: Site) -> ClientData:
        """What the clients hosted at a site get of the data."""
        return ClientData.of(data, self.partition, self.batch_size, site)

    def _require_compiler(self) -> None:
        if self.compile is None:
            return
        owner = type(self).__name__
        rule = "null: compiled networks have no second derivatives"
        require(not self.differentiates_twice, owner, "compile", self.compile, rule)
        # Asked only here: the compiler takes seconds to import.
        known = torch.compiler.list_backends(exclude_tags=())
        require(self.compile in known, owner, "compile", self.compile, "one of " + ", ".join(known))
