"""The site of an oracle."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedsys.core.peers import NoPeers, Peers
from fedsys.core.placement import Placement
from fedsys.system.memory import to_device


@dataclass(frozen=True)
class Site:
    """The site of an oracle: its clients, seed, dtype and device."""

    placement: Placement = field(default_factory=lambda: Placement(1))
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    kind: str | None = None
    """What the algorithm solves, for problems that can be posed in more than one way."""
    peers: Peers = field(default_factory=NoPeers, compare=False, repr=False)
    """The other ranks, for what clients agree on before training."""

    @property
    def hosted(self) -> range:
        """The clients hosted here."""
        return self.placement.hosted

    def convert(self, values: np.ndarray) -> Tensor:
        """An array in this site's numbers."""
        return to_device(values, self.device).to(self.dtype)

    def rows(self, point: Tensor) -> Tensor:
        """Return a point [d] as the row of every hosted client, in the site's dtype and device."""
        point = point.to(dtype=self.dtype, device=self.device)
        return point.expand(len(self.hosted), -1)
