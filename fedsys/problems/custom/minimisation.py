"""Minimisation problems from functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedsys.core.oracles import Draw
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.custom.function_problem import FunctionProblem
from fedsys.problems.custom.operator_rows import OneOperator
from fedsys.problems.custom.user_function import Scalar
from fedsys.problems.custom.variables import Variable


@dataclass(frozen=True)
class MinimisationProblem(FunctionProblem):
    """min over x of mean_m f_m(x), for loss(x, data) -> f_m(x).

    Args:
        loss: the loss of one client, differentiated by autograd unless `grad` is given.
        x: the starting point: a tensor of any shape, a list, a dictionary or a module.
        grad: grad(x, data) -> the gradient of one client's loss, in the form of x.
        terms: the term of x, or terms by the names of its tensors; for algorithms of operators.
        solution: x*, if it is known; `relative_error` is measured against it.

    The other options are those of `FunctionProblem`.
    """

    loss: Callable[..., Any]
    x: Any
    grad: Callable[..., Any] | None = None
    terms: Any = None
    solution: Any = None

    kinds: ClassVar[tuple[str, ...]] = ("minimisation", "variational")

    def oracle(self, site: Site) -> MinimisationFunctionOracle:
        """Return the oracle of the clients hosted at a site."""
        return MinimisationFunctionOracle(self, site)


class MinimisationFunctionOracle(OneOperator):
    """Gradients of a loss function, by autograd or given; as an operator they serve VI methods."""

    def __init__(self, problem: MinimisationProblem, site: Site) -> None:
        x = Variable(type(problem).__name__, "x", problem.x)
        super().__init__(problem, site, [x])
        self._measure(problem, [x], problem.solution, x.size)
        self._set_term(x, problem.terms)
        self.x0, start = self.z0, (self.z0,)
        self._loss = self._function("loss", problem.loss, [x], Scalar(), start)
        if problem.grad is not None:
            self._operator = self._function("grad", problem.grad, [x], x, start)
        else:
            self._operator = self._function("loss", problem.loss, [x], Scalar(), start, True)

    def grad(self, x: Tensor, xi: Draw) -> Tensor:
        """Return the gradient of f_m(x_m; xi_m)."""
        return self.operator(x, xi)

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """Return train_loss, relative_error if the solution is known, and the problem's metrics."""
        (losses,), noisy = self._loss.full((z,), self.step)
        found = self._mean_loss(losses, noisy, sync)
        return {**found, **self._distance(z), **self._own_metrics(z)}
