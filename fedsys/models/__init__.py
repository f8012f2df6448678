"""Network architectures, and loading of trained networks."""

from typing import Protocol

from torch import nn

from fedsys.models.cnn import CNN7, CNNTable3, LeNet5
from fedsys.models.loading import load_network
from fedsys.models.mlp import MLP
from fedsys.models.resnet import CifarResNet
from fedsys.models.torchvision_models import DenseNet121, ResNet50


class ModelSource(Protocol):
    """A configuration of the group `model`, which builds a network."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return the network for inputs of this shape."""


__all__ = [
    "CNN7",
    "MLP",
    "CNNTable3",
    "CifarResNet",
    "DenseNet121",
    "LeNet5",
    "ModelSource",
    "ResNet50",
    "load_network",
]
