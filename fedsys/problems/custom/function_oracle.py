"""The base classes of oracles of a user's functions: draws, full means, gradients by autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.errors import InputError
from fedsys.core.oracles import Draw
from fedsys.problems.custom.client_functions import ClientFunctions
from fedsys.problems.stepping import SteppingOracle

Metrics = Callable[[Tensor], dict[str, float]]


class FunctionOracle(SteppingOracle):
    """A draw is (step, k); a function is called with its generator or with its samples."""

    _metrics: Metrics | None = None
    _functions: ClientFunctions
    _owner: str

    def _declare(self, problem: Any, owner: str) -> None:
        """Store what the problem declares about its functions."""
        self._owner, self._metrics = owner, problem.metrics
        self._functions = ClientFunctions(owner, self.site, problem.samples, problem.batch_size)
        self.sizes = self._functions.sizes(self.site.hosted)

    @property
    @override
    def finite_sum(self) -> bool:
        return self._functions.finite_sum

    def draw(self) -> Draw:
        """Return (step, k) of the next draw."""
        return self._next()

    def _each(self, function: Callable[..., Tensor], z: Tensor, xi: Draw) -> Tensor:
        """Return the function of each hosted client at its row of z and a draw."""
        pairs = zip(z, self.site.hosted, strict=True)
        mean = self._functions.mean
        return torch.stack([mean(function, (row.detach(),), c, xi) for row, c in pairs])

    def _all(self, function: Callable[..., Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the function of each hosted client on all its data, and [C, 1] if it is random."""
        pairs = zip(z, self.site.hosted, strict=True)
        full = self._functions.full
        values = [full(function, (row.detach(),), c, self.step) for row, c in pairs]
        noisy = z.new_tensor([[float(noisy)] for _, noisy in values])
        return torch.stack([value for value, _ in values]), noisy

    def _own_metrics(self, z: Tensor) -> dict[str, float]:
        return self._metrics(z[0]) if self._metrics else {}


class OperatorFunction(FunctionOracle):
    """An oracle whose operator is a function of one client."""

    _operator: Callable[..., Tensor]

    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        """Return F_m(z_m; xi_m)."""
        return self._each(self._operator, z, xi)

    def full_operator(self, z: Tensor) -> Tensor:
        """Return F_m(z_m), the mean over all samples; an error if only random draws are known."""
        F, noisy = self._all(self._operator, z)
        if (reason := self._noise(noisy)) is not None:
            raise InputError(f"{self._owner}: {reason}")
        return F

    def unknown_mean(self) -> str | None:
        """Return why F_m is only known through random draws; None if it is exact."""
        return self._noise(self._all(self._operator, self.z0)[1])

    def _noise(self, noisy: Tensor) -> str | None:
        if not noisy.any():
            return None
        return (
            f"the function of client {self.site.hosted[int(noisy.argmax())]} draws random numbers, "
            "so its mean is unknown; declare samples=n if it is a mean over n samples"
        )


def gradients_of(
    loss: Callable[..., Tensor], variables: tuple[Tensor, ...], client: int, xi: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of one client's loss in its variables."""
    leaves = [variable.detach().requires_grad_() for variable in variables]
    with torch.enable_grad():
        return torch.autograd.grad(loss(*leaves, client, xi), leaves)
