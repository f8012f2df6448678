"""Dense networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import nn

from fedsys.core.errors import require
from fedsys.core.fields import Checked


@dataclass(frozen=True)
class MLP(Checked):
    """A multilayer perceptron with ReLU; without a hidden layer it is a linear model.

    Args:
        hidden: the widths of the hidden layers.
    """

    hidden: Sequence[int] = field(default=(64, 64))

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = all(width >= 1 for width in self.hidden)
        require(valid, "mlp", "hidden", list(self.hidden), "a list of positive widths")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return the network for inputs of this shape."""
        widths = [math.prod(input_shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()] if len(input_shape) > 1 else []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
