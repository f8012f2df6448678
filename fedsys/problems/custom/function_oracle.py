"""What all oracles of a user's functions share: variables, draws, metrics and warnings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.constants import Constants
from fedsys.core.errors import InputError
from fedsys.core.metrics import labelled
from fedsys.core.oracles import Draw
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.custom.client_function import ClientFunction
from fedsys.problems.custom.client_loop import Hosted, Rows
from fedsys.problems.custom.function_problem import FunctionProblem
from fedsys.problems.custom.user_function import Returned, UserFunction
from fedsys.problems.custom.variables import Variable, rows_of
from fedsys.problems.stepping import GivenDraws, SteppingOracle


class FunctionOracle(SteppingOracle):
    """An oracle whose draws are (step, k) and whose rows are variables of a user's form."""

    uses_autograd = False  # functions are recorded, or called outside of inference mode

    def __init__(self, problem: FunctionProblem, site: Site, variables: Sequence[Variable]) -> None:
        super().__init__(site)
        self._declare(problem, site, variables)
        self.z0 = site.rows(rows_of(variables))

    def _declare(self, problem: FunctionProblem, site: Site, variables: Sequence[Variable]) -> None:
        """Store the variables and what the problem says about its functions."""
        self._owner = type(problem).__name__
        self._variables = list(variables)
        self._dims = [variable.size for variable in variables]
        self._problem, self._metrics = problem, problem.metrics
        self._hosted: Hosted = problem.hosted(site)
        self.sizes = self._hosted.draws.sizes

    def _function(
        self,
        name: str,
        function: Callable[..., Any],
        variables: Sequence[Variable],
        returned: Returned,
        start: Rows,
        gradients: bool = False,
    ) -> ClientFunction:
        """Return a user's function, computed for all hosted clients."""
        drawn = "sample" if self._hosted.draws.counts is not None else "rng"
        user = UserFunction(self._owner, name, function, variables, returned, drawn)
        found = ClientFunction(user, self._hosted, start, gradients)
        obstacle, hosts = found.obstacle, len(self.site.hosted)
        if obstacle is not None and self._hosted.vectorize == "auto" and hosts > 1:
            self.warnings.setdefault(
                "vectorize",
                f"{user.what} is computed for one client after another: {obstacle}",
            )
        return found

    @property
    @override
    def finite_sum(self) -> bool:
        return self._hosted.draws.finite_sum

    @property
    @override
    def samples_per_draw(self) -> int | None:
        draws = self._hosted.draws
        return draws.batch_size if draws.finite_sum else None

    @override
    def use_draws(self, draws: GivenDraws) -> None:
        if not self.finite_sum:
            super().use_draws(draws)
        self._hosted.draws.given = draws

    def draw(self) -> Draw:
        """Return (step, k) of the next draw."""
        return self._next()

    def rows(self, z: Tensor) -> Rows:
        """Return the rows [C, n] of each variable."""
        return z.split_with_sizes(self._dims, dim=1)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a point [d] by name."""
        parts = z.split_with_sizes(self._dims, dim=-1)
        pairs = zip(self._variables, parts, strict=True)
        return {name: value for one, part in pairs for name, value in one.named(part).items()}

    def assembled(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the variables of `named` in the forms in which they were given."""
        return {one.name: one.assembled(tensors) for one in self._variables}

    def _own_metrics(self, z: Tensor) -> dict[str, float]:
        """Return the user's metrics at the mean of the variables, the first row."""
        if self._metrics is None:
            return {}
        with torch.inference_mode(False):
            rows = self.rows(z[:1].clone())
            forms = [v.form(row[0]) for v, row in zip(self._variables, rows, strict=True)]
            found = self._metrics(*forms)
        what = f"{self._owner}: metrics"
        if not isinstance(found, Mapping):
            raise InputError(f"{what} must return numbers by name, got a {type(found).__name__}")
        try:
            return {str(name): float(value) for name, value in found.items()}
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"{what} must return numbers by name, got {dict(found)}") from None

    def _mean_loss(self, values: Tensor, noisy: Tensor, sync: Sync) -> dict[str, float]:
        """Return train_loss, the mean of the clients' losses [C]."""
        loss, noise = sync(values[:, None], noisy)
        return {labelled("train_loss", bool(noise[0] > 0)): float(loss[0])}

    def _noise(self, noisy: Tensor) -> str | None:
        """Return why a mean is unknown; None if it is exact or the average of stated draws."""
        if not noisy.any() or self._hosted.mean_draws is not None:
            return None
        return (
            f"the function of client {self.site.hosted[int(noisy.argmax())]} draws random numbers, "
            "so its mean is unknown; declare samples=n if it is a mean over n samples, or "
            "mean_draws=n to average n draws"
        )

    def _given_constants(self) -> Constants | None:
        constants = self._problem.constants
        return constants if isinstance(constants, Constants) else None
