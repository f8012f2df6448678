"""Record a function of tensors once, and replay the operators that it called.

A function that torch.func maps over clients and differentiates spends most of its time outside of
the operators if these are small: 20 clients with 40 variables take 20 times as long as in NumPy.
The recorded operators run without that. A recording is right only for functions whose operators do
not depend on the values of their arguments; vmap refuses functions that branch on such values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from typing_extensions import override

Recorded = Callable[..., tuple[Tensor, ...]]

_aten = torch.ops.aten
_SAME_IF_SAME_SHAPE = ("aten.expand.default", "aten.view.default", "aten._unsafe_view.default")
"""Operators that do nothing if shape and strides of the result are those of the argument."""
_SAME = {_aten.detach.default, _aten.alias.default}
_OF_SHAPE = {_aten.ones_like.default, _aten.zeros_like.default, _aten.full_like.default}
"""Operators whose result depends on the shape of the argument only."""
_FOLDED = 2**20
"""The largest constant, in entries, that is computed once and kept rather than at every call."""


def record(function: Callable[..., tuple[Tensor, ...]], *examples: Tensor) -> Recorded | None:
    """Return the recorded operators of a function as a function of tensors of the same shapes.

    Returns None if the function cannot be recorded, or if the recording gives other numbers at
    another point than the examples.
    """
    try:
        from torch.fx.experimental.proxy_tensor import make_fx

        graph = make_fx(function)(*examples)
        _simplify(graph, examples)
        others = [_elsewhere(example) for example in examples]
        with torch.no_grad():
            pairs = zip(graph.forward(*others), function(*others), strict=True)
            if not all(_agree(a, b) for a, b in pairs):
                return None
    except Exception:  # any failure of the experimental tracer: the caller uses the function itself
        return None
    recorded: Recorded = graph.forward
    return recorded


def _elsewhere(example: Tensor) -> Tensor:
    """Return another point for floating-point numbers, and the same indices."""
    return example * 0.75 + 0.125 if example.is_floating_point() else example


def _agree(a: Tensor, b: Tensor) -> bool:
    tolerance = 1e3 * torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


class _Shapes(fx.Interpreter):
    """Records the value of every node."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.values: dict[fx.Node, Any] = {}

    @override
    def run_node(self, n: fx.Node) -> Any:
        value = self.values[n] = super().run_node(n)
        return value


def _simplify(module: fx.GraphModule, examples: tuple[Tensor, ...]) -> None:
    """Remove operators that do nothing, compute constants, and multiply thin matrices in NumPy."""
    graph = module.graph
    graph.eliminate_dead_code()
    shapes = _Shapes(module)
    with torch.no_grad():
        shapes.run(*examples)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        value = shapes.values[node]
        if _does_nothing(node, shapes.values):
            node.replace_all_uses_with(node.args[0])
        elif isinstance(value, Tensor) and _is_constant(node) and value.numel() <= _FOLDED:
            shapes.values[_fold(module, node, value)] = value
        elif (factor := _times_one(node, shapes.values)) is not None:
            node.replace_all_uses_with(factor)
        elif node.target is _aten.bmm.default and _is_thin(value):
            node.target = thin_product
        elif (columns := _product_of_column(node)) is not None:
            node.target, node.args = matrix_times_vector, columns
    graph.eliminate_dead_code()
    module.recompile()


def _does_nothing(node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    if node.target in _SAME:
        return True
    if node.target is _aten.permute.default:
        dims = list(node.args[1])  # type: ignore[arg-type]
        return dims == sorted(dims)
    if str(node.target) not in _SAME_IF_SAME_SHAPE:
        return False
    source, value = values[node.args[0]], values[node]  # type: ignore[index]
    return bool(source.shape == value.shape and source.stride() == value.stride())


def _times_one(node: fx.Node, values: dict[fx.Node, Any]) -> fx.Node | None:
    """Return the other factor of a product with a constant of ones."""
    if node.target is not _aten.mul.Tensor or len(node.args) != 2:
        return None
    for one, other in (node.args, node.args[::-1]):
        if not (isinstance(one, fx.Node) and isinstance(other, fx.Node) and one.op == "get_attr"):
            continue
        same = values[other].shape == values[node].shape
        if same and values[other].dtype == values[node].dtype and bool((values[one] == 1).all()):
            return other
    return None


def _product_of_column(node: fx.Node) -> tuple[Any, Any] | None:
    """Return (A, v) of a product A v that was computed with v as a matrix of one column."""
    if node.target is not _aten.squeeze.dim or node.args[1] != -1:
        return None
    product = node.args[0]
    if not isinstance(product, fx.Node) or product.target is not thin_product:
        return None
    matrix, column = product.args
    is_column = isinstance(column, fx.Node) and column.target is _aten.unsqueeze.default
    if not is_column or column.args[1] != -1:  # type: ignore[union-attr]
        return None
    return matrix, column.args[0]  # type: ignore[union-attr]


def _is_thin(value: Tensor) -> bool:
    return value.device.type == "cpu" and 1 in value.shape[1:]


def _is_constant(node: fx.Node) -> bool:
    """Return whether no argument of the node depends on the arguments of the function."""
    return node.target in _OF_SHAPE or all(one.op == "get_attr" for one in node.all_input_nodes)


def _fold(module: fx.GraphModule, node: fx.Node, value: Tensor) -> fx.Node:
    """Replace a node by its value; return the node of the value."""
    name = f"_constant_{node.name}"
    module.register_buffer(name, value.detach(), persistent=False)
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(name)
    node.replace_all_uses_with(constant)
    return constant


def thin_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of batches of matrices on a CPU, one of which is a row or a column.

    NumPy takes a fifth of the time of torch.bmm for them.
    """
    return torch.from_numpy(np.matmul(a.numpy(), b.numpy()))


def matrix_times_vector(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return the products [C, n] of matrices [C, n, m] and vectors [C, m] on a CPU."""
    return torch.from_numpy(np.matvec(matrices.numpy(), vectors.numpy()))
