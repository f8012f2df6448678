"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedsys.core.algorithm import Algorithm, State
from fedsys.core.constants import Theory

Record = dict[str, float]


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
