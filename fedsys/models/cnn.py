"""Small convolutional networks: those of adafgda.txt and localscgdam.txt."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedsys.models.image import make_norm, require_image, require_norm


@dataclass(frozen=True)
class LeNet5:
    """Two 5x5 convolutions and three dense layers (LeCun et al. 1998), with ReLU and max-pooling.

    Images smaller than 32 pixels are padded by 2, as MNIST was.
    """

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The network for images [channels, height, width]."""
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
class CNN7:
    """Seven layers with weights: 3x3 convolutions of 32, 32, 64, 64, 128, 128 and a dense one.

    adafgda.txt trains "a 7-layer CNN" on CIFAR-10 and does not say which: this is ours, with a
    norm and ReLU after each convolution and max-pooling after every second.

    Args:
        norm: "batch" or "group".
    """

    norm: str = "batch"

    def __post_init__(self) -> None:
        require_norm("cnn7", self.norm)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The network for images [channels, height, width]."""
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
class CNNTable3:
    """The classifier of localscgdam.txt Table 3: two convolutions, dense layers of 600 and 120.

    The table gives neither kernels nor padding: 3x3, and padding 1 in the first only, are those of
    the FashionMNIST network that it follows layer by layer. Its dense layers have no activation.

    Args:
        norm: "batch", as in the table, or "group".
    """

    norm: str = "batch"

    def __post_init__(self) -> None:
        require_norm("cnn_table3", self.norm)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The network for images [channels, height, width]."""
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
