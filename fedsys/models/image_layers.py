"""Checks of the input shape and normalisation layers, shared by all networks for images."""

from __future__ import annotations

from torch import nn

from fedsys.core.errors import require
from fedsys.models.batch_norm import BatchNorm2d

NORMS = ("batch", "group")


def require_image(owner: str, input_shape: tuple[int, ...], at_least: int = 1) -> None:
    """Raise an error if the input is not an image, or is too small for the network."""
    rule = "an image [channels, height, width]"
    if at_least > 1:
        rule += f" of at least {at_least}x{at_least} pixels"
    valid = len(input_shape) == 3 and min(input_shape[1:]) >= at_least
    require(valid, owner, "input", list(input_shape), rule)


def require_norm(owner: str, norm: str) -> None:
    """Raise an error if the normalisation is unknown."""
    require(norm in NORMS, owner, "norm", norm, " or ".join(NORMS))


def make_norm(kind: str, channels: int) -> nn.Module:
    """Return BatchNorm, or GroupNorm with 8 groups, which keeps no statistics across samples."""
    return BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(8, channels)
