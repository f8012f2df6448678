"""A module whose parameters are views of one flat vector.

A kernel of a convolution [O, I, H, W] lies there as [O, H, W, I]: with channels last in memory a
CPU takes two thirds of the time for a step of a small convolutional network.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsys.clients.running_statistics import statistics_of
from fedsys.core.errors import InputError
from fedsys.system.memory import keep_freed_memory


class FlatModule:
    """One player's variables: a module, and the flat vector [d] that its parameters begin with.

    Loading a client's row copies nothing and a gradient is one concatenation; cutting the row
    inside autograd instead would cost a fifth of a small model's step. The running
    statistics of normalisation layers are a second flat vector.
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
        self._statistics = statistics_of(self.module)
        self.statistics = _rebase(self._statistics, dtype, device)
        self._constants = self._copy_constants()

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
        """Return the parameters of a flat row [d] by name, or [M, ...] those of rows [M, d]."""
        parts = row.split_with_sizes(self.sizes, dim=-1)
        cut = zip(self.names, parts, self.shapes, strict=True)
        return {name: shaped(part, shape) for name, part, shape in cut}

    def state(self, row: Tensor, statistics: Tensor | None = None) -> dict[str, Tensor]:
        """Return what `load_state_dict(strict=True)` of the module needs, by name.

        Args:
            row: the parameters [d].
            statistics: the running statistics [b]; those of a new module by default.

        Buffers other than running statistics have the values that the module was built with; so
        has BatchNorm's count of batches, which no client keeps.
        """
        parameters, named = dict(zip(self.parameters, self.names, strict=True)), self.named(row)
        aliases = self.module.named_parameters(remove_duplicate=False)
        state = {alias: named[parameters[parameter]] for alias, parameter in aliases}
        row = self.statistics if statistics is None else statistics
        parts = row.split_with_sizes([b.numel() for b in self._statistics])
        cut = zip(self._statistics, parts, strict=True)
        values = {id(buffer): shaped(part, buffer.shape) for buffer, part in cut}
        buffers = self.module.state_dict(keep_vars=True).items()
        found = {name: values[id(buffer)] for name, buffer in buffers if id(buffer) in values}
        return {**state, **found, **self._constants}

    def _copy_constants(self) -> dict[str, Tensor]:
        """Copy what the module's state has besides parameters and running statistics."""
        others = {id(tensor) for tensor in (*self.parameters, *self._statistics)}
        state = self.module.state_dict(keep_vars=True).items()
        constants = {name: value for name, value in state if id(value) not in others}
        for name, value in constants.items():
            if not isinstance(value, Tensor):
                raise InputError(
                    f"the network's state has {name!r} of type {type(value).__name__}; only "
                    "tensors can be saved: keep it in a buffer"
                )
        return {name: value.detach().clone() for name, value in constants.items()}


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


def leaf(rows: Tensor) -> Tensor:
    """A copy for autograd to differentiate in."""
    return rows.detach().clone().requires_grad_()


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
