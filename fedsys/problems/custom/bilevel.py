"""Bilevel problems from functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.errors import require
from fedsys.core.metrics import labelled
from fedsys.core.oracles import Curvature, Draw, StepSize
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.bilevel.autograd import AutogradCurvature
from fedsys.problems.bilevel.evaluation import stationarity
from fedsys.problems.custom.client_function import ClientFunction
from fedsys.problems.custom.draws import Draws, Samples
from fedsys.problems.custom.function_oracle import FunctionOracle
from fedsys.problems.custom.function_problem import FunctionProblem
from fedsys.problems.custom.term_blocks import outer_term
from fedsys.problems.custom.user_function import Scalar
from fedsys.problems.custom.variables import Variable
from fedsys.problems.terms import NONE

LEVELS = ("own", "shared")


@dataclass(frozen=True)
class BilevelProblem(FunctionProblem):
    """min over x of mean_m f_m(x, y_m(x)), y_m(x) = argmin g_m(x, .).

    With lower_level="shared", y(x) = argmin of mean_m g_m(x, .) is the same for all clients.

    Args:
        outer: outer(x, y, data) -> f_m(x, y), differentiated by autograd.
        inner: inner(x, y, data) -> g_m(x, y), strongly convex in y, differentiated twice.
        x: the starting point of the shared variable: a tensor, a list, a dictionary or a module.
        y: the starting point of the inner variable.
        lower_level: "own" (for FedBiO and FedBiOAcc) or "shared" (for FedNestBilevel).
        outer_samples: the number of samples of f if it differs from `samples`, that of g.
        terms: {"x": term}, the term or constraint of x, or terms by the names of its tensors.

    The other options are those of `FunctionProblem`.
    """

    outer: Callable[..., Any]
    inner: Callable[..., Any]
    x: Any
    y: Any
    lower_level: str = "own"
    outer_samples: Samples = None
    terms: Any = None

    kinds: ClassVar[tuple[str, ...]] = ("bilevel", "shared_bilevel")

    def oracle(self, site: Site) -> BilevelFunctionOracle:
        """Return the oracle of the clients hosted at a site."""
        owner, level = type(self).__name__, self.lower_level
        require(level in LEVELS, owner, "lower_level", level, "own or shared")
        both = self.outer_samples is None or self.samples is not None
        rule = "None, unless samples= declares those of g"
        require(both, owner, "outer_samples", self.outer_samples, rule)
        return (BilevelFunctionOracle if level == "own" else SharedFunctionOracle)(self, site)


@dataclass(frozen=True)
class _AllData:
    """The draw that has all data of each client, at iteration `step`."""

    step: int


class BilevelFunctionOracle(FunctionOracle):
    """The first derivatives of f and g, and products with the second ones of g, by autograd."""

    _shared = False
    _latest: tuple[_Key, _GraphCurvature] | None = None

    def __init__(self, problem: BilevelProblem, site: Site) -> None:
        owner = type(problem).__name__
        x, y = variables = Variable(owner, "x", problem.x), Variable(owner, "y", problem.y)
        super().__init__(problem, site, variables)
        self._terms = (outer_term(owner, x, problem.terms), NONE)
        self.x0, self.y0 = start = self.rows(self.z0)
        self._inner = self._function("inner", problem.inner, [x, y], Scalar(), start)
        self._inner_grads = self._function("inner", problem.inner, [x, y], Scalar(), start, True)
        inner = self._hosted
        if problem.outer_samples is not None:
            samples, size, sampling = problem.outer_samples, problem.batch_size, problem.sampling
            self._hosted = replace(inner, draws=Draws(owner, site, samples, size, sampling))
        self._outer = self._function("outer", problem.outer, [x, y], Scalar(), start)
        self._outer_grads = self._function("outer", problem.outer, [x, y], Scalar(), start, True)
        self._hosted = inner

    def outer_draw(self) -> Draw:
        """Return (step, k) of the next draw of f."""
        return self._next()

    def inner_grad(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        """Return grad_y g_m."""
        return _at(self._inner_grads, (x, y), xi)[1]

    def outer_grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """Return grad_x f_m and grad_y f_m."""
        gx, gy = _at(self._outer_grads, (x, y), xi)
        return gx, gy

    def curvature(self, x: Tensor, y: Tensor, xi: Draw) -> Curvature:
        """Return the second derivatives of g_m, from the graph of its gradient in y.

        A Neumann series asks for those of the same point again: without random draws they are the
        same.
        """
        random = self._hosted.draws.finite_sum or self._inner.obstacle is not None
        key = (x, y, xi if random else None)
        if self._latest is None or not _same(self._latest[0], key):
            self._latest = key, self._curvature(x, y, xi)
        return self._latest[1]

    def _curvature(self, x: Tensor, y: Tensor, xi: Draw) -> _GraphCurvature:
        draws = self._hosted.draws
        with torch.inference_mode(False), torch.enable_grad():
            x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
            if isinstance(xi, _AllData) or (draws.counts is not None and not draws.finite_sum):
                step = xi.step if isinstance(xi, _AllData) else xi[0]
                (losses,), _ = self._inner.full((x, y), step)
            else:
                losses = self._inner.differentiable((x, y), xi)
            (gy,) = torch.autograd.grad(losses.sum(), y, create_graph=True)
        return _GraphCurvature(x, y, gy)

    @override
    def prox_x(self, x: Tensor, step: StepSize) -> Tensor:
        return self._terms[0].prox(x, step)

    @override
    def named(self, z: Tensor) -> dict[str, Tensor]:
        if z.dim() == 1:
            return super().named(z)
        x, y = self._variables
        rows = z.split_with_sizes(self._dims, dim=-1)
        return {**x.named(rows[0][0]), **y.named(rows[1])}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """Return outer_loss, the mean of f_m(x, y_m), and how far the point is from stationary.

        train_loss is outer_loss. hypergradient_norm and inner_residual are of
        `fedsys.problems.bilevel.evaluation`. Names have the prefix sampled_ if f or g draws random
        numbers, so that a value is that of one draw. The problem's own metrics get the mean of x
        and the y of the first client.
        """
        x, y = self.rows(z)
        (losses,), noisy = self._outer.full((x, y), self.step)
        _, inner_noisy = self._inner.full((x, y), self.step)
        loss, noise = sync(losses[:, None], torch.maximum(noisy, inner_noisy))
        draws = _AllData(self.step), _AllData(self.step)
        found = stationarity(self, x, y, draws, sync, self._shared)
        metrics = {"train_loss": float(loss[0]), "outer_loss": float(loss[0]), **found}
        is_noisy = bool(noise[0] > 0)
        named = {labelled(name, is_noisy): value for name, value in metrics.items()}
        return {**named, **self._own_metrics(z)}


class SharedFunctionOracle(BilevelFunctionOracle):
    """The derivatives of a problem whose lower level all clients share."""

    shared_inner = True
    _shared = True


def _at(function: ClientFunction, rows: tuple[Tensor, ...], xi: Draw) -> tuple[Tensor, ...]:
    if isinstance(xi, _AllData):
        return function.full(rows, xi.step)[0]
    return function(rows, xi)


_Key = tuple[Tensor, Tensor, Draw]
"""A point and a draw."""


def _same(one: _Key, other: _Key) -> bool:
    return one[0] is other[0] and one[1] is other[1] and one[2] == other[2]


class _GraphCurvature(AutogradCurvature):
    """The same for steps in inference mode, and for g that is linear in y and free of x."""

    @override
    def _product(self, variable: Tensor, v: Tensor) -> Tensor:
        if not self._gradient.requires_grad:
            return torch.zeros_like(variable.detach())
        with torch.inference_mode(False):
            return super()._product(variable, v.clone())
