"""Networks, and how their parameters become one flat vector."""

from typing import Protocol

from torch import nn

from fedsys.models.cnn import CNN7, CNNTable3, LeNet5
from fedsys.models.dense import DenseStack, Pull
from fedsys.models.flat import FlatModule, flattened
from fedsys.models.mlp import MLP
from fedsys.models.resnet import CifarResNet
from fedsys.models.stacked import StackedModules, is_dense, obstacle
from fedsys.models.vision import DenseNet121, ResNet50


class ModelSource(Protocol):
    """What a configuration of the group `model` builds."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The network for inputs of this shape."""


__all__ = [
    "CNN7",
    "MLP",
    "CNNTable3",
    "CifarResNet",
    "DenseNet121",
    "DenseStack",
    "FlatModule",
    "LeNet5",
    "ModelSource",
    "Pull",
    "ResNet50",
    "StackedModules",
    "flattened",
    "is_dense",
    "obstacle",
]
