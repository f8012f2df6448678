"""The oracles of several runs as one, whose rows are the clients of one run after another.

Axes: R runs, C clients of a run, d variables. A point is [R C, d].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.oracles import Draw, StepSize
from fedsys.problems.games.operator_oracle import OperatorOracle
from fedsys.problems.stepping import SteppingOracle

KINDS = ("variational", "minimax", "minimisation")
"""The kinds of problems that can be stacked."""


class StackedOracle(SteppingOracle):
    """Computes every run's rows with that run's oracle, hence with its data and its draws.

    Runs that share an oracle follow one another; its draws are made once for all of them, and a
    game evaluates them together (`OperatorOracle.operators`).

    Args:
        oracles: the oracle of every run.
    """

    _draws: list[Any]
    """The draws of this iteration so far, which all calls of `again` share."""
    _results: dict[tuple[Any, ...], tuple[Any, ...]] | None = None

    def __init__(self, oracles: Sequence[SteppingOracle]) -> None:
        super().__init__(oracles[0].site)
        self.uses_autograd = oracles[0].uses_autograd
        self._clients = len(oracles[0].sizes)
        groups = [[*members] for _, members in groupby(oracles, key=id)]
        self._oracles: list[Any] = [members[0] for members in groups]
        self._runs = [len(members) for members in groups]

    @override
    def at(self, step: int) -> Self:
        bound = super().at(step)
        bound._oracles = [oracle.at(step) for oracle in self._oracles]
        bound._draws = []
        return bound

    def again(self) -> Self:
        """Return this oracle at the start of the same iteration; both share draws and results."""
        if self._results is None:
            self._results = {}
        return super().at(self.step)

    def draw(self) -> list[Draw]:
        """Return the next draw of every oracle."""
        return self._drawn_value(lambda oracle: oracle.draw())

    @override
    def normal(self) -> Tensor:
        rows = self._drawn_value(lambda oracle: oracle.normal())
        pairs = zip(rows, self._runs, strict=True)
        return torch.cat([own for own, runs in pairs for _ in range(runs)])

    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        """Return F_m(z_m; xi_m)."""
        return self._once("operator", z, xi)

    def full_operator(self, z: Tensor) -> Tensor:
        """Return F_m(z_m) on all data."""
        return self._once("full_operator", z, None)

    def grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, ...]:
        """Return the gradients in x and y."""
        return self._of_each("grads", (x, y), xi)

    def full_grads(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients in x and y on all data."""
        return self._of_each("full_grads", (x, y), None)

    def grad(self, x: Tensor, xi: Draw) -> Tensor:
        """Return the gradient in x."""
        return self._of_each("grad", (x,), xi)[0]

    @override
    def prox(self, z: Tensor, step: StepSize) -> Tensor:
        return self._mapped("prox", z, step)

    @override
    def prox_x(self, x: Tensor, step: StepSize) -> Tensor:
        return self._mapped("prox_x", x, step)

    @override
    def prox_y(self, y: Tensor, step: StepSize) -> Tensor:
        return self._mapped("prox_y", y, step)

    @override
    def mirror(self, z: Tensor, weight: StepSize) -> Tensor:
        return self._mapped("mirror", z, weight)

    def _drawn_value(self, draw: Callable[[Any], Any]) -> list[Any]:
        k = self._drawn
        self._drawn += 1
        if k == len(self._draws):
            self._draws.append([draw(oracle) for oracle in self._oracles])
        drawn: list[Any] = self._draws[k]
        return drawn

    def _once(self, name: str, z: Tensor, xi: Draw) -> Tensor:
        """Return an operator; after `again`, the one that was computed at the same arguments."""
        if self._results is None:
            return self._of_each(name, (z,), xi)[0]
        key = name, id(z), id(xi)
        if key not in self._results:
            self._results[key] = z, xi, self._of_each(name, (z,), xi)[0]
        result: Tensor = self._results[key][2]
        return result

    def _of_each(self, name: str, points: tuple[Tensor, ...], xi: Draw) -> tuple[Tensor, ...]:
        """Return the results of a method, computed by the oracles at their own rows."""
        results, first = [], 0
        for oracle, runs, own in zip(self._oracles, self._runs, self._own(xi), strict=True):
            last = first + runs * self._clients
            rows = tuple(point[first:last] for point in points)
            results.append(self._of_one(oracle, runs, name, rows, own))
            first = last
        if len(results) == 1:
            return results[0]
        return tuple(torch.cat(parts) for parts in zip(*results, strict=True))

    def _own(self, xi: Draw) -> Sequence[Any]:
        return [None] * len(self._oracles) if xi is None else xi

    def _of_one(
        self, oracle: Any, runs: int, name: str, rows: tuple[Tensor, ...], xi: Draw
    ) -> tuple[Tensor, ...]:
        given = () if name in ("full_operator", "full_grads") else (xi,)
        if runs == 1:
            return _as_tuple(getattr(oracle, name)(*rows, *given))
        if isinstance(oracle, OperatorOracle) and name != "grad":
            z = rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
            stacked = z.reshape(runs, self._clients, -1)
            F = oracle.operators(stacked, xi, full=not given)
            F = F.reshape(z.shape)
            return (F,) if len(rows) == 1 else oracle._players(F)
        parts = zip(*(row.split(self._clients) for row in rows), strict=True)
        results = [_as_tuple(getattr(oracle, name)(*part, *given)) for part in parts]
        return tuple(torch.cat(results) for results in zip(*results, strict=True))

    def _mapped(self, name: str, v: Tensor, step: StepSize) -> Tensor:
        """Return a map of terms, which gets the step size of each run as a number."""
        row = v[: self._clients]
        if all(getattr(oracle, name)(row, 1.0) is row for oracle in self._oracles):
            return v  # no terms
        runs = [
            oracle for oracle, n in zip(self._oracles, self._runs, strict=True) for _ in range(n)
        ]
        steps = [step] * len(runs)
        if isinstance(step, Tensor):
            steps = step[:: self._clients, 0].tolist()
        parts = zip(runs, v.split(self._clients), steps, strict=True)
        return torch.cat([getattr(oracle, name)(rows, own) for oracle, rows, own in parts])


def _as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
