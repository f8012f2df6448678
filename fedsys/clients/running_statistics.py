"""Layers that keep running statistics of their inputs."""

from __future__ import annotations

from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
NORMS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
STATISTICS = ("running_mean", "running_var")
COUNT = "num_batches_tracked"
"""Of the batches that a layer has seen; used only without a momentum, which is refused."""


def statistics_of(module: nn.Module) -> list[Tensor]:
    """Return the running means and variances of all normalisation layers, in their order."""
    layers = (part for part in module.modules() if isinstance(part, NORMS))
    buffers = (dict(part.named_buffers(recurse=False)) for part in layers)
    return [named[name] for named in buffers for name in STATISTICS if name in named]
