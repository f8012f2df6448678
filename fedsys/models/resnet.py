"""Small residual networks for 32x32 images.

Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun. Deep Residual Learning for Image Recognition.
CVPR 2016. arXiv:1512.03385, Section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from typing_extensions import override

from fedsys.core.errors import require
from fedsys.core.fields import Checked
from fedsys.models.image_layers import make_norm, require_image, require_norm


@dataclass(frozen=True)
class CifarResNet(Checked):
    """ResNet with 6n + 2 layers in three stages of 16, 32 and 64 channels.

    He et al. (CVPR 2016), arXiv:1512.03385, Section 4.2.

    Args:
        depth: 20 has 0.27 million parameters; also 32, 44, 56.
        norm: "batch" or "group".
    """

    depth: int = 20
    norm: str = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = self.depth >= 8 and (self.depth - 2) % 6 == 0
        require(valid, "resnet", "depth", self.depth, "6n + 2, such as 20, 32 or 56")
        require_norm("resnet", self.norm)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return the network for images [channels, height, width]."""
        require_image("resnet", input_shape)
        blocks: list[nn.Module] = []
        fan_in = 16
        for stage, channels in enumerate((16, 32, 64)):
            for block in range((self.depth - 2) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(_Block(fan_in, channels, stride, self.norm))
                fan_in = channels
        return nn.Sequential(
            _convolution(input_shape[0], 16, 1),
            make_norm(self.norm, 16),
            nn.ReLU(inplace=True),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, outputs),
        )


class _Block(nn.Module):
    """Two 3x3 convolutions in parallel to a shortcut that subsamples and pads with zeros."""

    def __init__(self, fan_in: int, channels: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(fan_in, channels, stride), make_norm(norm, channels)
        self.conv2, self.norm2 = _convolution(channels, channels, 1), make_norm(norm, channels)
        self._stride, self._extra = stride, channels - fan_in

    @override
    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        if self._stride > 1 or self._extra:
            half = self._extra // 2
            x = x[:, :, :: self._stride, :: self._stride]
            x = F.pad(x, (0, 0, 0, 0, half, self._extra - half))
        return F.relu(out + x)


def _convolution(fan_in: int, channels: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(fan_in, channels, 3, stride=stride, padding=1, bias=False)
