"""The modules of all hosted clients at once: their parameters are stacked, a layer is one product.

Axes: C hosted clients, B samples, d parameters; I and O are the widths of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fedsys.clients.flat_module import FlatModule, shaped
from fedsys.core.errors import InputError
from fedsys.distributed.torch_internals import has_hooks
from fedsys.system.memory import recycled

Function = Callable[..., Tensor]
"""function(*modules, *batch) of one client."""


class StackedModules:
    """The players of all clients, called through torch.vmap.

    A function is written for the modules and the batch of one client. Dense layers are batched
    products that leave their gradients in one matrix [C, d]; by vmap's own rules each would be
    transposed and then copied there, which takes about as long as the products.

    Args:
        players: the modules of one client; none may have buffers, see `obstacle`.
    """

    def __init__(self, players: Sequence[FlatModule]) -> None:
        self._modules = [_twin(player.module) for player in players]
        owners = [m for module in self._modules for m in module.modules()]
        self._places = [(m._parameters, name) for m in owners for name in m._parameters]
        self._places = [(at, name) for at, name in self._places if at[name] is not None]
        self._layers = {id(m._parameters): m for m in owners if isinstance(m, _Dense)}
        self._sizes = [player.sizes for player in players]
        self._shapes = [shape for player in players for shape in player.shapes]
        self._dim = sum(sum(sizes) for sizes in self._sizes)

    def __call__(self, function: Function, rows: Sequence[Tensor], *batch: Tensor) -> Tensor:
        """The function's value for every client [C, ...]; autograd can differentiate it.

        Args:
            function: of one client's modules and batch.
            rows: the flat parameters [C, d] of each player.
            batch: tensors with an axis of clients.
        """
        return self._call(function, self._cut(rows), batch)

    def gradients(self, function: Function, rows: Sequence[Tensor], *batch: Tensor) -> Tensor:
        """The gradients of each client's value in the parameters of all its players: [C, d]."""
        joined = recycled(rows[0], len(rows[0]), self._dim)
        slots = self._shaped(joined.split_with_sizes([*chain(*self._sizes)], dim=1))
        leaves = [part.detach().requires_grad_() for part in self._cut(rows)]
        self._lend(slots)
        try:
            with torch.enable_grad():
                values = self._call(function, leaves, batch)
            ones = torch.ones_like(values)
            found = torch.autograd.grad(values, leaves, ones, materialize_grads=True)
        finally:
            self._lend([])
        for slot, gradient in zip(slots, found, strict=True):
            if gradient.data_ptr() != slot.data_ptr():
                slot.copy_(gradient)
        return joined

    def _call(
        self, function: Function, parameters: list[Tensor], batch: tuple[Tensor, ...]
    ) -> Tensor:
        def one(parameters: list[Tensor], batch: tuple[Tensor, ...]) -> Tensor:
            for (owner, name), parameter in zip(self._places, parameters, strict=True):
                owner[name] = parameter  # type: ignore[assignment]
            return function(*self._modules, *batch)

        try:
            values: Tensor = torch.vmap(one)(parameters, batch)
        except RuntimeError as error:
            if "random operation" not in str(error):
                raise
            raise InputError(
                "the network draws random numbers in some of its forward passes, which clients "
                "that are computed at once would share; use problem.vectorize=loop"
            ) from error
        finally:
            for owner, name in self._places:  # lest a state lives on here
                owner[name] = None
        return values

    def _cut(self, rows: Sequence[Tensor]) -> list[Tensor]:
        parts: list[Tensor] = []
        for row, sizes in zip(rows, self._sizes, strict=True):
            row = row if row.stride(1) == 1 else row.contiguous()
            parts += row.split_with_sizes(sizes, dim=1)
        return self._shaped(parts)

    def _shaped(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return [shaped(part, s) for part, s in zip(parts, self._shapes, strict=True)]

    def _lend(self, slots: list[Tensor]) -> None:
        """Tell the dense layers where their gradients belong."""
        for layer in self._layers.values():
            layer.slots.clear()
        for (owner, name), slot in zip(self._places, slots, strict=False):
            if id(owner) in self._layers:
                self._layers[id(owner)].slots[name] = slot


def is_dense(module: nn.Module) -> bool:
    """Whether all of torch's layers with weights in it are linear: what stacking is faster for."""
    layers = [m for m in module.modules() if type(m).__module__.startswith("torch.nn")]
    weighty = [m for m in layers if list(m.parameters(recurse=False))]
    return all(type(layer) is nn.Linear for layer in weighty) and obstacle(module) is None


def obstacle(module: nn.Module) -> str | None:
    """Why a module cannot be stacked, if so."""
    for part in module.modules():
        if list(part.buffers(recurse=False)):
            return f"{type(part).__name__} changes buffers of its own"
        if has_hooks(part):
            return f"{type(part).__name__} has hooks"
    if len([*module.parameters()]) < len([*module.named_parameters(remove_duplicate=False)]):
        return "its layers share parameters"
    return None


def _twin(module: nn.Module) -> nn.Module:
    """Return the module without values, with its linear layers replaced."""
    if type(module) is nn.Linear:
        return _Dense(module)
    twin = deepcopy(module).to("meta")
    for parent in list(twin.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, _Dense(child))
    return twin


class _Dense(nn.Module):
    """A linear layer; `slots` says where the gradients of its parameters belong, if anywhere."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.slots: dict[str, Tensor] = {}

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs W' + b."""
        if inputs.dim() != 2 or self.bias is None:
            return linear(inputs, self.weight, self.bias)
        apply: Function = _OfOneClient.apply  # which is not annotated
        return apply(inputs, self.weight, self.bias, self)


class _OfOneClient(torch.autograd.Function):
    """A dense layer inside vmap, which hands the stacked tensors to its rule."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor, layer: _Dense) -> Tensor:
        raise AssertionError("only called through vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing: its rule has a context of its own."""

    @staticmethod
    def vmap(
        info: Any, dims: Any, inputs: Tensor, weight: Tensor, bias: Tensor, layer: _Dense
    ) -> tuple[Tensor, int]:
        """All clients at once."""
        stacked = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((inputs, weight, bias), dims, strict=False)
        ]
        apply: Function = _OfAllClients.apply
        return apply(*stacked, layer), 0


class _OfAllClients(torch.autograd.Function):
    """Batched products, whose derivative is made of batched products."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, layer: _Dense) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.layer = layer
        return torch.baddbmm(bias[:, None], inputs, weight.mT)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        inputs, weight = ctx.saved_tensors
        # Each slot is used once: a layer that was called twice has gradients that are added up.
        slots = {} if torch.is_grad_enabled() else ctx.layer.slots
        of_weight = torch.bmm(outer.mT, inputs, out=slots.pop("weight", None))
        of_bias = torch.sum(outer, 1, out=slots.pop("bias", None))
        of_inputs = torch.bmm(outer, weight) if ctx.needs_input_grad[0] else None
        return of_inputs, of_weight, of_bias, None
