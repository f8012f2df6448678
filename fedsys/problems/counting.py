"""Count the operators and gradients that an algorithm evaluates.

`SteppingOracle` counts the calls of its methods by the names below, in every subclass. A method
that calls another counted one is one call: `grads` of a game calls `operator`, and counts once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from types import FunctionType
from typing import Any

from torch import Tensor

AT_A_DRAW = frozenset({
    "operator", "grad", "grads", "inner", "inner_grad", "outer_grads", "weighted_grad",
    "loss_and_grad", "disparity_and_grad", "class_grad",
})  # fmt: skip
"""Methods that evaluate an operator or gradients at one draw of every hosted client."""
ON_ALL_DATA = frozenset({"full_operator", "full_grads"})
"""Methods that evaluate them on all data of every hosted client."""


def count_calls(owner: type) -> None:
    """Replace the methods that a class defines by ones that count their calls in the oracle."""
    for name, method in [*vars(owner).items()]:
        if not isinstance(method, FunctionType):
            continue
        if name in AT_A_DRAW:
            setattr(owner, name, _counted(method, 1, 0))
        elif name in ON_ALL_DATA:
            setattr(owner, name, _counted(method, 0, 1))
        elif name == "curvature":
            setattr(owner, name, _with_counted_products(method))


def _counted(method: Callable[..., Any], calls: int, passes: int) -> Callable[..., Any]:
    # Setting the sums afterwards, instead of adding, leaves out the calls inside of this one.
    @wraps(method)
    def counted(self: Any, *args: Any, **options: Any) -> Any:
        calls_before, passes_before = self.calls, self.passes
        result = method(self, *args, **options)
        self.calls, self.passes = calls_before + calls, passes_before + passes
        return result

    @wraps(method)
    def counted_operator(self: Any, z: Tensor, xi: Any) -> Any:
        calls_before, passes_before = self.calls, self.passes
        result = method(self, z, xi)
        self.calls, self.passes = calls_before + calls, passes_before + passes
        return result

    # An operator of a game takes a few microseconds, and *args and **options a tenth of one.
    is_operator = [*signature(method).parameters] == ["self", "z", "xi"]
    return counted_operator if is_operator else counted


def _with_counted_products(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def counted(self: Any, *args: Any, **options: Any) -> Any:
        return _CountedCurvature(self, method(self, *args, **options))

    return counted


class _CountedCurvature:
    """Second derivatives of which each product with a vector counts as a call."""

    def __init__(self, oracle: Any, curvature: Any) -> None:
        self._oracle, self._curvature = oracle, curvature

    def hessian_product(self, v: Tensor) -> Tensor:
        self._oracle.calls += 1
        product: Tensor = self._curvature.hessian_product(v)
        return product

    def cross_product(self, v: Tensor) -> Tensor:
        self._oracle.calls += 1
        product: Tensor = self._curvature.cross_product(v)
        return product
