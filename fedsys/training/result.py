"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from fedsys.core.algorithm import Algorithm, State
from fedsys.core.constants import Theory
from fedsys.core.metrics import Record

__all__ = ["Record", "Result"]


@dataclass(frozen=True)
class Result:
    """The final state, the records and the variables of a run."""

    state: State
    """The final state of the clients hosted here."""
    records: list[Record]
    """The records, from the start to the last step."""
    variables: dict[str, Any]
    """The final variables and the buffers of networks (BatchNorm's statistics), by name.

    They are tensors, except for problems from functions, whose variables have the form in which
    they were given: a tensor, a dictionary of tensors, or a module.

    Shared variables are averaged; a private variable has shape [M, ...], one row for each client.
    """
    algorithm: Algorithm[Any, Any]
    """The algorithm with the hyperparameters that were used."""
    theory: Theory | None = None
    """The constants that hyperparameters were computed from."""
    report: dict[str, Any] | None = None
    """The final report of a problem that has one."""
    warnings: list[str] = field(default_factory=list)
    """The warnings of the evaluations."""
    trajectory: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    """The states of all clients [M, ...] by name, by the number of steps; see `fedsys.run`."""
    stopped: str = ""
    """Why early stopping ended the run; empty for a run of its planned length."""
    kept: Record = field(default_factory=dict)
    """Step and round of `variables`; with `keep="best"` also the metric and its best value."""
    records_without_improvement: int | None = None
    """The records since the last improvement; None if the run did not follow a metric."""

    def for_autograd(self) -> Self:
        """Return the same with copies of all tensors, made outside of inference mode.

        Autograd cannot use tensors that were created in inference mode.
        """
        with torch.inference_mode(False):
            return replace(
                self,
                state=type(self.state)(**_copies(self.state.tensors())),
                variables=_copies(self.variables),
                trajectory={step: _copies(state) for step, state in self.trajectory.items()},
            )


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}
