"""Large networks of torchvision, with input layers that match the image size and channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from fedsys.core.fields import Checked
from fedsys.models.image_layers import make_norm, require_image, require_norm
from fedsys.system.compat import torchvision

_SMALL = 64
"""Images up to this size keep their resolution. The usual stem for 224 pixels divides it by 4."""


@dataclass(frozen=True)
class TorchvisionModel(Checked):
    """A network of torchvision with any number of input channels.

    The first layer is a 3x3 convolution with stride 1 and no pooling for images of up to 64 pixels,
    and the usual 7x7 convolution with stride 2 and max-pooling for larger images.

    Args:
        norm: "batch" or "group".
    """

    norm: str = "batch"

    name: ClassVar[str]
    stem: ClassVar[str]
    """The name of the first convolution."""
    pool: ClassVar[str]
    """The name of the pooling layer after it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_norm(self.name, self.norm)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return the network for images [channels, height, width]."""
        require_image(self.name, input_shape, at_least=8)
        make: Callable[..., Any] = getattr(torchvision().models, self.name)
        net: nn.Module = make(num_classes=outputs)
        self._fit_input(net, input_shape)
        _replace_batch_norm(net, self.norm)
        return net

    def _fit_input(self, net: nn.Module, input_shape: tuple[int, ...]) -> None:
        small = max(input_shape[1:]) <= _SMALL
        if not small and input_shape[0] == 3:
            return
        shape = {"kernel_size": 3, "padding": 1} if small else _USUAL
        stem = nn.Conv2d(input_shape[0], 64, bias=False, **shape)  # type: ignore[arg-type]
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        net.set_submodule(self.stem, stem)
        if small:
            net.set_submodule(self.pool, nn.Identity())


_USUAL = {"kernel_size": 7, "stride": 2, "padding": 3}


@dataclass(frozen=True)
class ResNet50(TorchvisionModel):
    """ResNet50 of He et al. (CVPR 2016), arXiv:1512.03385."""

    name: ClassVar[str] = "resnet50"
    stem: ClassVar[str] = "conv1"
    pool: ClassVar[str] = "maxpool"


@dataclass(frozen=True)
class DenseNet121(TorchvisionModel):
    """DenseNet121 of Huang et al. (CVPR 2017), arXiv:1608.06993."""

    name: ClassVar[str] = "densenet121"
    stem: ClassVar[str] = "features.conv0"
    pool: ClassVar[str] = "features.pool0"


def _replace_batch_norm(net: nn.Module, norm: str) -> None:
    names = [name for name, part in net.named_modules() if isinstance(part, nn.BatchNorm2d)]
    for name in names:
        channels: Any = net.get_submodule(name).num_features
        net.set_submodule(name, make_norm(norm, channels))
