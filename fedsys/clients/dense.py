"""Dense networks of all hosted clients at once, differentiated by hand.

Axes: C hosted clients, B samples, O outputs, d parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedsys.clients.flat_module import FlatModule
from fedsys.distributed.torch_internals import has_hooks
from fedsys.system.memory import recycled

Pull = Callable[..., Tensor]
"""The transposed Jacobian of scores: from [C, B, O] to [C, d], a new tensor or a given one."""


class DenseStack:
    """Linear layers with ReLU in between, as batched products.

    Autograd computes the same numbers; for small models its own work takes as long as theirs.

    A module around them may have parameters of its own, which come first in its rows.

    Args:
        player: whose module `fits`.
    """

    def __init__(self, player: FlatModule) -> None:
        own = 0 if isinstance(player.module, nn.Sequential) else len(_own(player.module))
        self.first = sum(player.sizes[:own])
        self._sizes = player.sizes[own:]
        self._shapes = player.shapes[own::2]
        self.layers = len(self._shapes)

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether a module is nothing but such layers, in the order in which they are called."""
        children = list(module.children())
        if has_hooks(module) or any(map(has_hooks, children)):
            return False
        if not isinstance(module, nn.Sequential):
            (child, *others) = [*children, None]
            return isinstance(child, nn.Sequential) and others == [None] and DenseStack.fits(child)
        layers = [type(layer) for layer in children if type(layer) is not nn.Flatten]
        with_bias = all(is_plain(child) for child in children if type(child) is nn.Linear)
        alternating = all(a is not b for a, b in pairwise(layers)) and {*layers} <= _KNOWN
        ends = bool(layers) and layers[0] is layers[-1] is nn.Linear
        first = all(type(layer) is not nn.Flatten for layer in children[1:])
        return alternating and ends and with_bias and first

    def scores(self, rows: Tensor, inputs: Tensor) -> tuple[Tensor, Pull]:
        """The outputs [C, B, O] for inputs [C, B, ...], and the way back from them.

        The rows are those of the layers, from `first` on.
        """
        weights, biases = self._cut(rows)
        seen = [inputs.flatten(2)]
        for layer, (W, b) in enumerate(zip(weights, biases, strict=True)):
            hidden = torch.baddbmm(b[:, None], seen[-1], W.mT)
            seen.append(hidden if layer + 1 == self.layers else hidden.relu_())

        def pull(u: Tensor, out: Tensor | None = None) -> Tensor:
            joined = recycled(rows, *rows.shape) if out is None else out
            of_weights, of_biases = self._cut(joined)
            for layer in reversed(range(self.layers)):
                torch.bmm(u.mT, seen[layer], out=of_weights[layer])
                torch.sum(u, 1, out=of_biases[layer])
                if layer > 0:
                    u = torch.bmm(u, weights[layer])
                    u = torch.ops.aten.threshold_backward(u, seen[layer], 0)
            return joined

        return seen[-1], pull

    def forward(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """The outputs once more, for autograd; of one layer they are linear in the rows."""
        weights, biases = self._cut(rows)
        hidden = inputs.flatten(2)
        for layer, (W, b) in enumerate(zip(weights, biases, strict=True)):
            hidden = torch.baddbmm(b[:, None], hidden, W.mT)
            hidden = hidden if layer + 1 == self.layers else hidden.relu()
        return hidden

    def _cut(self, rows: Tensor) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """The weights [C, O, I] and the biases [C, O] of all layers, as views of the rows."""
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        parts = rows.split_with_sizes(self._sizes, dim=1)
        weights = zip(parts[::2], self._shapes, strict=True)
        return [part.unflatten(1, shape) for part, shape in weights], parts[1::2]


_KNOWN = {nn.Linear, nn.ReLU}


def is_plain(layer: nn.Linear) -> bool:
    """Whether weight and bias are the layer's parameters; weight_norm, for one, replaces them."""
    return [name for name, _ in layer.named_parameters(recurse=False)] == ["weight", "bias"]


def _own(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that belong to no child."""
    return list(module.parameters(recurse=False))
