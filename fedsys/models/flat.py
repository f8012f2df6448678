"""A module whose parameters are views of one flat vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsys.memory import keep_freed_memory


class FlatModule:
    """One player's variables: a module, and the flat vector [d] that its parameters are cut from.

    Loading a client's row is one copy and a gradient is one concatenation; cutting the row inside
    autograd instead would cost a fifth of a small model's step. BatchNorm's running statistics are
    a second flat vector, kept in the same way.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        keep_freed_memory()
        self.module = module.to(device=device, dtype=dtype)
        named = list(self.module.named_parameters())
        self.names = [name for name, _ in named]
        self.shapes = [parameter.shape for _, parameter in named]
        self.parameters = [parameter for _, parameter in named]
        self.vector = _rebase(self.parameters, dtype, device)
        # Integer buffers only count batches, which nothing here reads.
        self._statistics = [b for b in self.module.buffers() if b.is_floating_point()]
        self.buffers = _rebase(self._statistics, dtype, device)

    def load(self, row: Tensor) -> None:
        """Make the module compute at this point."""
        self.vector.copy_(row)

    def named(self, row: Tensor) -> dict[str, Tensor]:
        """A flat row, cut into the parameters' names and shapes."""
        parts = row.split_with_sizes([shape.numel() for shape in self.shapes])
        cut = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in cut}


def _rebase(
    tensors: list[Tensor] | list[nn.Parameter], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Move tensors into one flat vector and leave views of it in their place."""
    vector = torch.empty(sum(t.numel() for t in tensors), dtype=dtype, device=device)
    for tensor, part in zip(
        tensors, vector.split_with_sizes([t.numel() for t in tensors]), strict=True
    ):
        part.copy_(tensor.detach().reshape(-1))
        tensor.data = part.view(tensor.shape)
    return vector
