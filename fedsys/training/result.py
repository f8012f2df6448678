"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import Algorithm, State
from fedsys.core.constants import Theory
from fedsys.core.metrics import Record, headline, importance, metrics_of
from fedsys.core.metrics import metric as metric_named
from fedsys.training.curves import draw_metric, new_axes
from fedsys.training.frames import frame

__all__ = ["Record", "Result"]

_MOST_METRICS = 3


@dataclass(frozen=True, repr=False)
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
    problem: str = ""
    """The class of the problem."""

    def frame(self) -> Any:
        """Return the records as a pandas DataFrame, one row for each. Requires pandas."""
        return frame(self.records, "Result.records")

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """Draw a metric against communication rounds, and return the matplotlib figure.

        Args:
            metric: the metric; by default the headline metric.
            ax: the axes of matplotlib to draw into; by default those of a new figure.
        """
        name = metric or headline(self.records[-1])
        panel = new_axes() if ax is None else ax
        draw_metric(panel, name, self.records, label=type(self.algorithm).__name__)
        return panel.figure

    @override
    def __repr__(self) -> str:
        last = self.records[-1] if self.records else {}
        names = [name for name in metrics_of(last) if metric_named(name).headline]
        shown = sorted(names, key=importance)[:_MOST_METRICS] or [headline(last)]
        values = ", ".join(f"{name} {last[name]:.4g}" for name in shown if name in last)
        length = f"{_count(last.get('round', 0), 'round')} ({_count(last.get('step', 0), 'step')})"
        what = f"{type(self.algorithm).__name__} on {self.problem or 'a problem'}"
        warnings = f"; {_count(len(self.warnings), 'warning')}" if self.warnings else ""
        return f"<Result of {what}: {length}, {values or 'no metrics'}{warnings}>"

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


def _count(number: float, what: str) -> str:
    return f"{number:.0f} {what}{'' if number == 1 else 's'}"


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}
