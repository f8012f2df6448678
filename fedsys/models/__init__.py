"""Networks, and how their parameters become one flat vector."""

from typing import Protocol

from torch import nn

from fedsys.models.flat import FlatModule
from fedsys.models.mlp import MLP
from fedsys.models.resnet import CifarResNet


class ModelSource(Protocol):
    """What a configuration of the group `model` builds."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The network for inputs of this shape."""


__all__ = ["MLP", "CifarResNet", "FlatModule", "ModelSource"]
