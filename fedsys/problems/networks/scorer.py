"""A network with one output as a score in (0, 1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override


class Scorer(nn.Module):
    """A network with one output, the logit of its score in (0, 1)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the network's only output."""
        logits: Tensor = self.net(inputs)[:, 0]
        return logits

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.sigmoid(self.logits(inputs))
