"""Terms of a user's problem, one for each variable or tensor of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.errors import InputError
from fedsys.core.oracles import StepSize
from fedsys.problems.custom.variables import Leaf, Variable
from fedsys.problems.terms import NONE, Term


@dataclass(frozen=True)
class Shaped(Term):
    """A term that acts on tensors [C, *shape] rather than on rows: a norm of matrices, or a user's.

    Args:
        term: an object with prox(v, step), and optionally mirror(v, weight) and value(v).
        shape: the shape of the variable.
    """

    term: Any
    shape: tuple[int, ...]

    @override
    def prox(self, v: Tensor, step: StepSize) -> Tensor:
        if isinstance(step, Tensor):
            one_per_client = step.shape[1] == 1
            shape = (1,) * len(self.shape) if one_per_client else self.shape
            step = step.reshape(-1, *shape)
        return self._checked(self.term.prox(v.reshape((-1, *self.shape)), step), v, "prox")

    @override
    def mirror(self, v: Tensor, weight: float) -> Tensor:
        if not hasattr(self.term, "mirror"):
            return self.prox(v, weight)
        return self._checked(self.term.mirror(v.reshape((-1, *self.shape)), weight), v, "mirror")

    @override
    def value(self, v: Tensor) -> Tensor:
        if not hasattr(self.term, "value"):
            return v.new_zeros(len(v))
        found: Tensor = self.term.value(v.reshape((-1, *self.shape)))
        return found

    def _checked(self, value: Any, v: Tensor, name: str) -> Tensor:
        expected = [len(v), *self.shape]
        if not isinstance(value, Tensor) or list(value.shape) != expected:
            given = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"{type(self.term).__name__}.{name} must return a tensor of shape {expected}, "
                f"got {given}"
            )
        return value.reshape(v.shape)


@dataclass(frozen=True)
class Blocks(Term):
    """Terms on parts of a row [C, n].

    Args:
        parts: the place of each part in the row, and its term.
    """

    parts: tuple[tuple[int, int, Term], ...]

    @override
    def prox(self, v: Tensor, step: StepSize) -> Tensor:
        def block(first: int, last: int) -> StepSize:
            return step[:, first:last] if isinstance(step, Tensor) and step.shape[1] > 1 else step

        return self._joined(v, lambda term, part, a, b: term.prox(part, block(a, b)))

    @override
    def mirror(self, v: Tensor, weight: float) -> Tensor:
        return self._joined(v, lambda term, part, a, b: term.mirror(part, weight))

    @override
    def value(self, v: Tensor) -> Tensor:
        return sum((t.value(v[:, a:b]) for a, b, t in self.parts), v.new_zeros(len(v)))

    def _joined(self, v: Tensor, apply: Any) -> Tensor:
        return torch.cat([apply(term, v[:, a:b], a, b) for a, b, term in self.parts], dim=1)


def term_of(owner: str, variable: Variable, given: Any) -> Term:
    """Return the term of a variable, from a term or from terms by the names of its tensors."""
    if given is None:
        return NONE
    leaves = variable.leaves
    if not isinstance(given, Mapping):
        if len(leaves) > 1:
            names = ", ".join(leaf.name for leaf in leaves)
            raise InputError(
                f"{owner}: terms of {variable.name} must be given by tensor, as a dictionary with "
                f"some of the keys {names}"
            )
        return _leaf_term(owner, leaves[0], given)
    unknown = [str(name) for name in given if str(name) not in {leaf.name for leaf in leaves}]
    if unknown:
        names = ", ".join(leaf.name for leaf in leaves)
        raise InputError(
            f"{owner}: terms of {variable.name} name {unknown[0]!r}, which is not one of {names}"
        )
    parts = [(leaf, given.get(leaf.name)) for leaf in leaves]
    if all(term is None for _, term in parts):
        return NONE
    return Blocks(
        tuple(
            (leaf.place.start, leaf.place.stop, NONE if t is None else _leaf_term(owner, leaf, t))
            for leaf, t in parts
        )
    )


def outer_term(owner: str, x: Variable, given: Any) -> Term:
    """Return the term of a bilevel problem's outer variable, from {"x": term}."""
    if given is None:
        return NONE
    if not isinstance(given, Mapping) or set(given) != {"x"}:
        raise InputError(
            f'{owner}: terms must be {{"x": term}}, as the lower level is solved by gradients '
            f"without a term, got {dict(given) if isinstance(given, Mapping) else given}"
        )
    return term_of(owner, x, given["x"])


def _leaf_term(owner: str, leaf: Leaf, term: Any) -> Term:
    if isinstance(term, Term) and not getattr(term, "of_matrices", False):
        return term
    if not callable(getattr(term, "prox", None)):
        raise InputError(
            f"{owner}: a term must have a method prox(v, step), which {type(term).__name__} lacks; "
            "fedsys.problems.terms has L1, L2, Box, Ball, Simplex and NuclearNorm"
        )
    if getattr(term, "of_matrices", False) and len(leaf.shape) != 2:
        raise InputError(
            f"{owner}: {term} needs a matrix, got a variable of shape {list(leaf.shape)}"
        )
    return Shaped(term, leaf.shape)
