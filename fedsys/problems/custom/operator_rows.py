"""Operators of a user's problem on all data: means, solutions, constants, gaps and terms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.constants import Constants
from fedsys.core.errors import InputError, require
from fedsys.core.oracles import Draw
from fedsys.core.sync import Sync
from fedsys.problems.custom.client_function import ClientFunction
from fedsys.problems.custom.draws import to_indices
from fedsys.problems.custom.estimates import Estimates
from fedsys.problems.custom.function_oracle import FunctionOracle
from fedsys.problems.custom.function_problem import ESTIMATE, FunctionProblem
from fedsys.problems.custom.term_blocks import term_of
from fedsys.problems.custom.variables import Variable, solution_row
from fedsys.problems.terms import NONE, Term


class OperatorRows(FunctionOracle):
    """An oracle with an operator F_m, the gradient of a loss or a function of its own."""

    _solution: Tensor | None = None
    _radius: float | None = None
    _estimates: Estimates

    def _measure(
        self,
        problem: FunctionProblem,
        variables: Sequence[Variable],
        solution: Any,
        split: int,
        radius: float | None = None,
        noise: float = 0.0,
    ) -> None:
        """Store what the quality of a point is measured with."""
        owner = type(problem).__name__
        require(radius is None or radius > 0, owner, "gap", radius, "a positive radius or None")
        known = solution_row(owner, variables, solution)
        self._solution = None if known is None else known.to(self.z0)
        self._radius, self._estimates = radius, Estimates(self, split, noise)

    @abstractmethod
    def full_rows(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return F_m(z_m) [C, d] on all data, and [C, 1], where it is random."""

    @abstractmethod
    def sample_rows(self, z: Tensor, samples: Sequence[int]) -> Tensor:
        """Return F_m(z_m) [C, d] at one sample of each client's finite sum."""

    @abstractmethod
    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        """Return F_m(z_m; xi_m)."""

    @property
    def batch_size(self) -> int | None:
        """The number of samples of a draw; None if it has all, or if there are no samples."""
        draws = self._hosted.draws
        return draws.batch_size if draws.finite_sum else None

    def drawn_samples(self, xi: Draw) -> Tensor:
        """Return the samples of a draw, indices [C, B]."""
        return to_indices(self._hosted.draws.indices(*xi), self.site.device)

    def operator_of_samples(self, z: Tensor, index: Tensor) -> Tensor:
        """Return F_mj(z_m) for every sample j of `index` [C, B]: [C, B, d], without noise."""
        columns = index.mT.tolist()
        return torch.stack([self.sample_rows(z, samples) for samples in columns], dim=1)

    def unknown_mean(self) -> str | None:
        """Return why F_m is only known through random draws; None if it is exact."""
        return self._noise(self.full_rows(self.z0)[1])

    def full_operator(self, z: Tensor) -> Tensor:
        """Return F_m(z_m), the mean over all samples; an error if only random draws are known."""
        F, noisy = self.full_rows(z)
        if (reason := self._noise(noisy)) is not None:
            raise InputError(f"{self._owner}: {reason}")
        return F

    def solution(self, sync: Sync) -> Tensor | None:
        """Return z* [d], if it was given."""
        return self._solution

    @override
    def constants(self, sync: Sync) -> Constants | None:
        if self._problem.constants == ESTIMATE:
            return self._estimates.constants(sync, self._radius, self._solution)
        return self._given_constants()

    def _distance(self, z: Tensor) -> dict[str, float]:
        """Return relative_error if the solution is known."""
        if self._solution is None:
            return {}
        start = float((self.z0[0] - self._solution).square().sum())
        return {"relative_error": float((z[0] - self._solution).square().sum()) / (start or 1.0)}


class OneOperator(OperatorRows):
    """An operator of one variable, and its term."""

    _operator: ClientFunction
    _term: Term = NONE

    def _set_term(self, variable: Variable, terms: Any) -> None:
        self._term = term_of(self._owner, variable, terms)

    @override
    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        return self._operator((z,), xi)[0]

    @override
    def full_rows(self, z: Tensor) -> tuple[Tensor, Tensor]:
        (F,), noisy = self._operator.full((z,), self.step)
        return F, noisy

    @override
    def sample_rows(self, z: Tensor, samples: Sequence[int]) -> Tensor:
        return self._operator.at_samples((z,), samples)[0]

    @override
    def prox(self, z: Tensor, step: float) -> Tensor:
        return z if self._term is NONE else self._term.prox(z, step)

    @override
    def mirror(self, z: Tensor, weight: float) -> Tensor:
        return z if self._term is NONE else self._term.mirror(z, weight)
