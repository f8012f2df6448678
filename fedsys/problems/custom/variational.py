"""Variational inequalities and min-max problems from functions.

Axes: C hosted clients, d variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.errors import InputError, require
from fedsys.core.metrics import labelled
from fedsys.core.oracles import Draw
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.custom.client_loop import Rows
from fedsys.problems.custom.function_problem import FunctionProblem
from fedsys.problems.custom.operator_rows import OneOperator, OperatorRows
from fedsys.problems.custom.term_blocks import term_of
from fedsys.problems.custom.user_function import Scalar
from fedsys.problems.custom.variables import Variable, rows_of
from fedsys.problems.games.operator_oracle import OperatorOracle
from fedsys.problems.terms import NONE, Term


@dataclass(frozen=True)
class VariationalProblem(FunctionProblem):
    """Find z with mean_m F_m(z) = 0, for operator(z, data) -> F_m(z).

    With terms or constraints it is the variational inequality of F and the terms.

    Args:
        operator: the operator of one client. It returns the form of z: a tensor of its shape, or a
            dictionary of tensors.
        z: the starting point: a tensor of any shape, numbers in a list, a dictionary, or a module.
        split: the number of z's entries that belong to the min player, for min-max algorithms;
            half of them by default.
        terms: the term of z, or terms by the names of its tensors.
        solution: z*, if it is known; `relative_error` is measured against it.
        gap: the radius of the ball around the starting point over which the gap is taken.
        noise: sigma of Gaussian noise added to every draw.

    The other options are those of `FunctionProblem`.
    """

    operator: Callable[..., Any]
    z: Any
    split: int | None = None
    terms: Any = None
    solution: Any = None
    gap: float | None = None
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("variational", "minimax")

    def oracle(self, site: Site) -> VariationalFunctionOracle:
        """Return the oracle of the clients hosted at a site."""
        return VariationalFunctionOracle(self, site)


@dataclass(frozen=True)
class MinimaxProblem(FunctionProblem):
    """min over x, max over y of mean_m f_m(x, y), for loss(x, y, data) -> f_m(x, y).

    Args:
        loss: the loss of one client, differentiated by autograd unless `grads` is given.
        x: the starting point of the min player: a tensor, a list, a dictionary or a module.
        y: the starting point of the max player.
        grads: grads(x, y, data) -> (gradient in x, gradient in y) of one client.
        terms: {"x": term, "y": term}; a term can be a dictionary by the names of tensors.
        solution: (x*, y*), if it is known; `relative_error` is measured against it.
        gap: the radius of the ball around the starting point over which the gap is taken.
        noise: sigma of Gaussian noise added to the gradients of every draw.

    The other options are those of `FunctionProblem`.
    """

    loss: Callable[..., Any]
    x: Any
    y: Any
    grads: Callable[..., Any] | None = None
    terms: Any = None
    solution: Any = None
    gap: float | None = None
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def oracle(self, site: Site) -> MinimaxFunctionOracle:
        """Return the oracle of the clients hosted at a site."""
        return MinimaxFunctionOracle(self, site)


class GameOracle(OperatorRows, OperatorOracle):
    """What oracles of operators and of min-max losses share."""

    def __init__(
        self,
        problem: VariationalProblem | MinimaxProblem,
        site: Site,
        variables: list[Variable],
        split: int,
        terms: tuple[Term, Term],
    ) -> None:
        owner, noise = type(problem).__name__, problem.noise
        require(noise >= 0, owner, "noise", noise, "at least 0")
        OperatorOracle.__init__(self, site, rows_of(variables), split, terms, noise)
        self._declare(problem, site, variables)
        self._measure(problem, variables, problem.solution, split, problem.gap, noise)

    @override
    def draw(self) -> Draw:
        if self._scale == 0:
            self._drawn += 1
            return self.step, self._drawn - 1
        xi = self._next()
        noise = self.site.convert(self._noises.normal(*xi, self.z0.shape[1]))
        return xi, self._scale * noise

    @override
    def drawn_samples(self, xi: Draw) -> Tensor:
        return super().drawn_samples(xi if self._scale == 0 else xi[0])

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        mean, noisy = sync(*self.full_rows(z))
        ahead = z - mean
        mapped = self.prox(ahead, 1.0)
        has_terms, is_noisy = mapped is not ahead, bool(noisy[0] > 0)
        residual = z - mapped if has_terms else mean
        found = {labelled("operator_norm", is_noisy): float(residual[0].norm())}
        found |= self._distance(z)
        if self._radius is not None and not has_terms and not is_noisy:
            found |= self._estimates.gap(z, self._radius, sync)
        return {**found, **self._own_metrics(z)}


class VariationalFunctionOracle(OneOperator, GameOracle):
    """An oracle whose operator is a function."""

    def __init__(self, problem: VariationalProblem, site: Site) -> None:
        owner = type(problem).__name__
        z = Variable(owner, "z", problem.z)
        split = z.size // 2 if problem.split is None else problem.split
        valid = type(split) is int and 0 <= split <= z.size
        require(valid, owner, "split", split, f"an integer from 0 to {z.size}")
        GameOracle.__init__(self, problem, site, [z], split, (NONE, NONE))
        self._set_term(z, problem.terms)
        self._operator = self._function("operator", problem.operator, [z], z, (self.z0,))
        self._of_rows = self._operator.of_rows

    @override
    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        if self._scale == 0:
            return self._operator((z,), xi)[0] if self._of_rows is None else self._of_rows(z)
        drawn, noise = xi
        F: Tensor = self._operator((z,), drawn)[0] + noise
        return F


class _Gradients:
    """The gradients in x and y that a user's function returns, as one row."""

    def __init__(self, x: Variable, y: Variable) -> None:
        self._players = (x, y)

    def flatten(self, value: Any, lead: tuple[int, ...], what: str) -> Tensor:
        """Return the two gradients as a row [*lead, dx + dy]."""
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise InputError(f"{what} must return (gradient in x, gradient in y)")
        pairs = zip(self._players, value, strict=True)
        return torch.cat([player.flatten(part, lead, what) for player, part in pairs], dim=-1)


class MinimaxFunctionOracle(GameOracle):
    """Gradients of a loss function of two players, by autograd or given."""

    def __init__(self, problem: MinimaxProblem, site: Site) -> None:
        owner = type(problem).__name__
        x, y = Variable(owner, "x", problem.x), Variable(owner, "y", problem.y)
        given = problem.terms or {}
        unknown = [name for name in given if name not in ("x", "y")]
        require(not unknown, owner, "terms", unknown, "a dictionary with the keys x and y")
        terms = (term_of(owner, x, given.get("x")), term_of(owner, y, given.get("y")))
        super().__init__(problem, site, [x, y], x.size, terms)
        start = (self.x0, self.y0)
        self._given = problem.grads is not None
        if problem.grads is not None:
            returned = _Gradients(x, y)
            self._gradient = self._function("grads", problem.grads, [x, y], returned, start)
        else:
            self._gradient = self._function("loss", problem.loss, [x, y], Scalar(), start, True)

    def _gradients(self, found: Rows) -> tuple[Tensor, Tensor]:
        if self._given:
            gx, gy = found[0].split_with_sizes(self._dims, dim=1)
            return gx, gy
        return found[0], found[1]

    @override
    def grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        drawn, noise = (xi, None) if self._scale == 0 else xi
        gx, gy = self._gradients(self._gradient((x, y), drawn))
        if noise is None:
            return gx, gy
        nx, ny = noise.split_with_sizes(self._dims, dim=1)
        return gx + nx, gy - ny

    @override
    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        x, y = self.rows(z)
        gx, gy = self.grads(x, y, xi)
        return torch.cat([gx, -gy], dim=1)

    @override
    def full_rows(self, z: Tensor) -> tuple[Tensor, Tensor]:
        found, noisy = self._gradient.full(self.rows(z), self.step)
        gx, gy = self._gradients(found)
        return torch.cat([gx, -gy], dim=1), noisy

    @override
    def sample_rows(self, z: Tensor, samples: Sequence[int]) -> Tensor:
        gx, gy = self._gradients(self._gradient.at_samples(self.rows(z), samples))
        return torch.cat([gx, -gy], dim=1)
