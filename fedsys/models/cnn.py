"""Small convolutional networks for the experiments of two papers.

Huang, Wang, Li, Chen. Adaptive Federated Minimax Optimization with Lower Complexities. AISTATS
2024. arXiv:2211.07303 (LeNet-5 and a 7-layer CNN).

Zhang, Zhang, Yang, Souvenir, Gao. Federated Compositional Deep AUC Maximization. NeurIPS 2023.
arXiv:2304.10101 (the CNN of Table 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedsys.core.fields import Checked
from fedsys.models.image_layers import make_norm, require_image, require_norm


@dataclass(frozen=True)
class LeNet5(Checked):
    """Two 5x5 convolutions and three dense layers, with ReLU and max-pooling.

    LeCun, Bottou, Bengio, Haffner. Gradient-Based Learning Applied to Document Recognition.
    Proceedings of the IEEE, 1998. Images smaller than 32 pixels are padded by 2, as MNIST was.
    """

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return the network for images [channels, height, width]."""
        require_image("lenet5", input_shape, at_least=12)
        channels, height, width = input_shape
        pad = 2 if min(height, width) < 32 else 0

        def end(length: int) -> int:
            return ((length + 2 * pad - 4) // 2 - 4) // 2

        return nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=pad),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * end(height) * end(width), 120),
            nn.ReLU(inplace=True),
            nn.Linear(120, 84),
            nn.ReLU(inplace=True),
            nn.Linear(84, outputs),
        )


@dataclass(frozen=True)
class CNN7(Checked):
    """Six 3x3 convolutions with 32, 32, 64, 64, 128 and 128 channels, and a dense layer.

    Huang et al. (AISTATS 2024), arXiv:2211.07303, Section 6.2, train "a 7-layer CNN" on CIFAR-10
    without describing it. This architecture is our choice: a norm and ReLU after each convolution,
    and max-pooling after every second one.

    Args:
        norm: "batch" or "group".
    """

    norm: str = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_norm("cnn7", self.norm)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return the network for images [channels, height, width]."""
        require_image("cnn7", input_shape, at_least=8)
        fan_in, height, width = input_shape
        layers: list[nn.Module] = []
        for channels in (32, 64, 128):
            for _ in range(2):
                layers += _convolution(fan_in, channels, 1, self.norm)
                fan_in = channels
            layers.append(nn.MaxPool2d(2))
        features = 128 * (height // 8) * (width // 8)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, outputs))


@dataclass(frozen=True)
class CNNTable3(Checked):
    """Two convolutions and dense layers of 600 and 120 units.

    Zhang et al. (NeurIPS 2023), arXiv:2304.10101, Table 3. The table gives neither kernel sizes nor
    padding. Kernels of 3x3, and padding 1 in the first convolution only, are those of the
    FashionMNIST network that the table follows layer by layer. The dense layers have no activation.

    Args:
        norm: "batch", as in the table, or "group".
    """

    norm: str = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_norm("cnn_table3", self.norm)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return the network for images [channels, height, width]."""
        require_image("cnn_table3", input_shape, at_least=8)
        channels, height, width = input_shape
        features = 64 * ((height // 2 - 2) // 2) * ((width // 2 - 2) // 2)
        return nn.Sequential(
            *_convolution(channels, 32, 1, self.norm),
            nn.MaxPool2d(2),
            *_convolution(32, 64, 0, self.norm),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(features, 600),
            nn.Linear(600, 120),
            nn.Linear(120, outputs),
        )


def _convolution(fan_in: int, channels: int, padding: int, norm: str) -> list[nn.Module]:
    convolution = nn.Conv2d(fan_in, channels, 3, padding=padding)
    return [convolution, make_norm(norm, channels), nn.ReLU(inplace=True)]
