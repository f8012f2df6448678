"""The variables of a user's functions: tensors of any shape, dictionaries of them, or a module.

Algorithms work on flat rows [C, d]. A `Variable` converts between a row and the form in which the
user gave the starting point, which is the form that functions and results have.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsys.clients.running_statistics import BATCH_NORMS
from fedsys.core.errors import InputError


class BoundModule:
    """A module with other parameters: call it like the module itself.

    Only the call, `parameters` and `named_parameters` are available: the parts of the module would
    compute with the parameters that it was built with.
    """

    def __init__(self, module: nn.Module, parameters: Mapping[str, Tensor]) -> None:
        self._module, self._parameters = module, dict(parameters)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the module with these parameters."""
        return torch.func.functional_call(self._module, self._parameters, arguments, options)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters with their names."""
        yield from self._parameters.items()

    def parameters(self) -> Iterator[Tensor]:
        """Yield the parameters."""
        yield from self._parameters.values()


@dataclass(frozen=True)
class Leaf:
    """One tensor of a variable: its name within the variable, shape, and place in a row."""

    name: str
    shape: tuple[int, ...]
    place: slice


class Variable:
    """One variable of a problem: its starting point, and conversions to and from rows [..., n].

    Args:
        owner: the problem's name, for error messages.
        name: the name of the variable, such as "x".
        value: a tensor, an array, a number or a nested list of numbers; a dictionary of them; or a
            module, whose parameters are the variable.
    """

    def __init__(self, owner: str, name: str, value: object) -> None:
        self.name, self._owner = name, owner
        self._module = value if isinstance(value, nn.Module) else None
        if self._module is not None:
            _refuse_batch_norm(owner, name, self._module)
            tensors = {n: p.detach().clone() for n, p in self._module.named_parameters()}
        elif isinstance(value, Mapping):
            tensors = {str(n): _tensor(owner, f"{name}[{n!r}]", v) for n, v in value.items()}
        else:
            tensors = {"": _tensor(owner, name, value)}
        if not tensors:
            raise InputError(f"{owner}: {name} has no variables; give a tensor or a dictionary")
        self.leaves: list[Leaf] = []
        size = 0
        for leaf, tensor in tensors.items():
            shape = tuple(tensor.shape)
            self.leaves.append(Leaf(leaf, shape, slice(size, size + prod(shape))))
            size += prod(shape)
        self.size = size
        self.start = torch.cat([tensor.flatten() for tensor in tensors.values()])
        self.is_plain = self._module is None and not isinstance(value, Mapping)
        self.is_vector = self.is_plain and self.start.dim() == 1 and len(self.leaves[0].shape) == 1

    def form(self, row: Tensor) -> Any:
        """Return the form of the variable from a row [..., n]; leading axes are kept."""
        if self.is_vector:
            return row
        lead = row.shape[:-1]
        parts = {
            leaf.name: row[..., leaf.place].reshape((*lead, *leaf.shape)) for leaf in self.leaves
        }
        if self.is_plain:
            return parts[""]
        return parts if self._module is None else BoundModule(self._module, parts)

    def assembled(self, tensors: Mapping[str, Tensor]) -> Any:
        """Return the variable in its form from the tensors of `named`: a module with them.

        A variable that clients keep to themselves has the client axis first; modules are then
        given as dictionaries.
        """
        parts = {leaf.name: tensors[self._full_name(leaf)] for leaf in self.leaves}
        if self.is_plain:
            return parts[""]
        if self._module is None or any(
            parts[leaf.name].shape != leaf.shape for leaf in self.leaves
        ):
            return parts
        module = copy.deepcopy(self._module).to(next(iter(parts.values())))
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(parts[name])
        return module

    def _full_name(self, leaf: Leaf) -> str:
        return f"{self.name}.{leaf.name}".rstrip(".")

    def named(self, row: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a row [..., n] by name: `x`, or `x.weight` of a dictionary."""
        lead = row.shape[:-1]
        return {
            self._full_name(leaf): row[..., leaf.place].reshape((*lead, *leaf.shape))
            for leaf in self.leaves
        }

    def flatten(self, value: Any, lead: tuple[int, ...], what: str) -> Tensor:
        """Return a value in the form of the variable as a row [*lead, n].

        Raises:
            InputError: the value has another form; `what` names it in the message.
        """
        if self.is_vector and isinstance(value, Tensor) and value.shape == (*lead, self.size):
            return value
        if self.is_plain:
            values = {"": value}
        elif isinstance(value, Mapping):
            values = {str(name): part for name, part in value.items()}
        elif self._module is not None and isinstance(value, tuple | list):
            values = dict(zip([leaf.name for leaf in self.leaves], value, strict=False))
        else:
            raise InputError(f"{what} returned {kind_of(value)}; expected {self.expected(lead)}")
        if values.keys() != {leaf.name for leaf in self.leaves}:
            keys = ", ".join(sorted(values))
            raise InputError(f"{what} returned the keys {keys}; expected {self.expected(lead)}")
        rows = []
        for leaf in self.leaves:
            part = as_tensor(values[leaf.name])
            if part is None or part.shape != (*lead, *leaf.shape):
                of = f" for {leaf.name}" if leaf.name else ""
                given = kind_of(values[leaf.name])
                raise InputError(f"{what} returned {given}{of}; expected {self.expected(lead)}")
            rows.append(part.reshape((*lead, -1)))
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=-1)

    def expected(self, lead: tuple[int, ...] = ()) -> str:
        """Describe the form for an error message."""
        shapes = [f"{leaf.name}: {[*lead, *leaf.shape]}" for leaf in self.leaves]
        if self.is_plain:
            return f"a tensor of shape {[*lead, *self.leaves[0].shape]}"
        return f"a dictionary of tensors ({', '.join(shapes)})"


def as_tensor(value: object) -> Tensor | None:
    """Return a tensor from a tensor or an array; None for anything else."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return value if isinstance(value, Tensor) else None


def kind_of(value: object) -> str:
    """Describe a returned value for an error message."""
    if isinstance(value, Tensor | np.ndarray):
        kind = "a tensor" if isinstance(value, Tensor) else "an array"
        return f"{kind} of shape {list(value.shape)}"
    if value is None:
        return "None (is there a return statement?)"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _tensor(owner: str, name: str, value: object) -> Tensor:
    """Return a starting point as a tensor of floating-point numbers."""
    allowed = "a tensor, an array, a list of numbers, a dictionary of them or an nn.Module"
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{owner}: {name} must be {allowed}, got {kind_of(value)}") from None
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"{owner}: {name} must have real numbers, got {tensor.dtype}")
    if tensor.numel() == 0:
        raise InputError(f"{owner}: {name} has no entries (shape {list(tensor.shape)})")
    tensor = tensor.detach()
    if not bool(tensor.isfinite().all()):
        raise InputError(f"{owner}: {name} must be finite; it has nan or inf")
    # Python's numbers are doubles; torch would read a list as float32.
    return tensor if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)


def _refuse_batch_norm(owner: str, name: str, module: nn.Module) -> None:
    layer = next((part for part in module.modules() if isinstance(part, BATCH_NORMS)), None)
    if layer is not None:
        raise InputError(
            f"{owner}: {name} has {type(layer).__name__}, whose running statistics a function "
            "cannot synchronise; use GroupNorm, or a problem of fedsys.problems.networks"
        )


def rows_of(variables: Sequence[Variable]) -> Tensor:
    """Return the starting point of all variables as one row [d]."""
    wide = torch.promote_types
    dtype = variables[0].start.dtype
    for variable in variables[1:]:
        dtype = wide(dtype, variable.start.dtype)
    return torch.cat([variable.start.to(dtype) for variable in variables])


def solution_row(owner: str, variables: Sequence[Variable], given: Any) -> Tensor | None:
    """Return a solution, in the forms of the variables, as one row [d]; None if it is not given."""
    if given is None:
        return None
    values = (given,) if len(variables) == 1 else given
    if isinstance(values, Mapping):
        values = [values.get(variable.name) for variable in variables]
    if not isinstance(values, tuple | list) or len(values) != len(variables):
        names = ", ".join(variable.name for variable in variables)
        raise InputError(f"{owner}: solution must be ({names})")
    known = [
        Variable(owner, f"solution of {v.name}", s) for v, s in zip(variables, values, strict=True)
    ]
    for variable, solution in zip(variables, known, strict=True):
        if variable.leaves != solution.leaves:
            raise InputError(
                f"{owner}: the solution of {variable.name} must be {variable.expected()}, "
                f"got {solution.expected()}"
            )
    return rows_of(known)
