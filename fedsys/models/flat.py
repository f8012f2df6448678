"""A module whose parameters are views of one flat vector.

A kernel of a convolution [O, I, H, W] lies there as [O, H, W, I]: with channels last in memory a
CPU takes two thirds of the time for a step of a small convolutional network.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsys.memory import keep_freed_memory


class FlatModule:
    """One player's variables: a module, and the flat vector [d] that its parameters begin with.

    Loading a client's row copies nothing and a gradient is one concatenation; cutting the row
    inside autograd instead would cost a fifth of a small model's step. BatchNorm's running
    statistics are a second flat vector.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        keep_freed_memory()
        self.module = module.to(device=device, dtype=dtype)
        named = list(self.module.named_parameters())
        self.names = [name for name, _ in named]
        self.shapes = [parameter.shape for _, parameter in named]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.parameters = [parameter for _, parameter in named]
        self.vector = _rebase(self.parameters, dtype, device)
        # Integer buffers only count batches, which nothing here reads.
        self._statistics = [b for b in self.module.buffers() if b.is_floating_point()]
        self.buffers = _rebase(self._statistics, dtype, device)

    def load(self, row: Tensor) -> None:
        """Make the module compute at this point: its parameters become views of the row."""
        parts = row.contiguous().split_with_sizes(self.sizes)
        for parameter, part, shape in zip(self.parameters, parts, self.shapes, strict=True):
            parameter.data = shaped(part, shape)

    def at(self, row: Tensor, function: Callable[..., Tensor], *args: Tensor) -> Tensor:
        """function(module, *args) with the parameters cut from a row, which autograd then sees.

        For derivatives of derivatives: the graph of a loaded point ends with the next `load`.
        """
        named = {f"module.{name}": part for name, part in self.named(row).items()}
        value: Tensor = functional_call(_Function(self.module, function), named, args)
        return value

    def named(self, row: Tensor) -> dict[str, Tensor]:
        """A flat row, cut into the parameters' names and shapes."""
        parts = row.split_with_sizes(self.sizes)
        cut = zip(self.names, parts, self.shapes, strict=True)
        return {name: shaped(part, shape) for name, part, shape in cut}


def shaped(part: Tensor, shape: torch.Size) -> Tensor:
    """A part of a row, or of several [..., n], as a parameter: [..., *shape]."""
    before = part.shape[:-1]
    if len(shape) != 4:
        return part.view((*before, *shape))
    out, fan_in, height, width = shape
    return part.view(*before, out, height, width, fan_in).movedim(-1, -3)


def flattened(parameter: Tensor) -> Tensor:
    """The part of a row that a parameter, or its gradient, is."""
    return (parameter.movedim(1, -1) if parameter.dim() == 4 else parameter).reshape(-1)


class _Function(nn.Module):
    """A function of a module, as a module: what functional_call can call."""

    def __init__(self, module: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.module, self._function = module, function

    def forward(self, *args: Tensor) -> Tensor:
        """The function's value."""
        return self._function(self.module, *args)


def _rebase(
    tensors: list[Tensor] | list[nn.Parameter], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Move tensors into one flat vector and leave views of it in their place."""
    vector = torch.empty(sum(t.numel() for t in tensors), dtype=dtype, device=device)
    for tensor, part in zip(
        tensors, vector.split_with_sizes([t.numel() for t in tensors]), strict=True
    ):
        part.copy_(flattened(tensor.detach()))
        tensor.data = shaped(part, tensor.shape)
    return vector
