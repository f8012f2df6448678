"""Evaluation that either all ranks complete or all ranks abandon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.communication import Communicator
from fedsys.core.algorithm import Guarantee, State
from fedsys.core.cancellation import CancelledError, cancelled_if
from fedsys.core.metrics import Record
from fedsys.core.optional_oracles import CrossSite
from fedsys.core.oracles import Oracle, Reporting
from fedsys.core.sync import Serve, Sync
from fedsys.core.traffic import Traffic
from fedsys.training.cross_site import ClientModels, cross_site

Value = TypeVar("Value")


class Evaluation:
    """Computes the metrics of a state and the final report; both may take long.

    A rank that is asked to stop abandons its evaluation between two batches of its data, while
    other ranks may have completed theirs and wait in a collective. Therefore an all-reduce of one
    number precedes every collective of an evaluation, in which the ranks agree to continue. A rank
    that has abandoned its evaluation joins the next of these, and all ranks abandon it there.

    Args:
        oracle: the oracle of the clients hosted here.
        communicator: connects the ranks; evaluation is not counted as traffic.
        is_asked_to_stop: whether a stop was requested, as far as this rank knows.
    """

    def __init__(
        self,
        oracle: Oracle,
        communicator: Communicator,
        is_asked_to_stop: Callable[[], bool],
    ) -> None:
        self._oracle, self._communicator = oracle, communicator
        self._is_asked_to_stop = is_asked_to_stop

    def metrics(self, points: dict[str, Tensor]) -> Record:
        """Return the problem's metrics at all points; raise `CancelledError` on all ranks."""
        return self._agreed(
            lambda sync: {
                f"{name}_{metric}".lstrip("_"): value
                for name, z in points.items()
                for metric, value in self._oracle.evaluate(z, sync).items()
            }
        )

    def guaranteed(self, guarantee: Guarantee, state: State, steps: int) -> dict[str, float]:
        """Return what a theorem bounds at a state, and the bound, as `metrics` does."""
        return self._agreed(lambda sync: guarantee.metrics(state, steps, self._oracle, sync))

    def report(self, z: Tensor, models: ClientModels) -> dict[str, Any] | None:
        """Return the report of a problem that has one; raise `CancelledError` on all ranks.

        Args:
            z: the final point of the clients hosted here.
            models: the final models of the clients, for the site-by-site matrix if it is wanted.
        """
        oracle = self._oracle
        found: dict[str, Any] = {}
        if isinstance(oracle, Reporting):
            found |= self._agreed(lambda sync: oracle.report(z, sync))
        if isinstance(oracle, CrossSite) and oracle.judges_all_models:
            found["cross_site"] = self._agreed(lambda sync: cross_site(oracle, models, z, sync))
        return found or None

    def _agreed(self, work: Callable[[Sync], Value]) -> Value:
        sync = _AgreeingSync(self._communicator, self._agree_to_continue)
        try:
            with cancelled_if(self._is_asked_to_stop):
                result = work(sync)
        except _AllAbandonError:
            raise
        except CancelledError:
            self._agree(abandons=True)
            raise
        self._agree(abandons=False)
        return result

    def _agree_to_continue(self) -> None:
        self._agree(abandons=self._is_asked_to_stop())

    def _agree(self, abandons: bool) -> None:
        """Raise on all ranks if one of them abandons the evaluation."""
        abandoning = torch.tensor([float(abandons)])
        self._communicator.transport.all_reduce(abandoning)
        if abandoning.item() > 0:
            raise _AllAbandonError


class _AllAbandonError(CancelledError):
    """All ranks abandon the evaluation at the same collective."""


class _AgreeingSync(Sync):
    """A sync in which all ranks agree to continue before each collective."""

    __slots__ = ("_agree",)

    def __init__(self, communicator: Communicator, agree: Callable[[], None]) -> None:
        super().__init__(communicator, True, Traffic())
        self._agree = agree

    @override
    def __call__(self, *fields: Tensor) -> Any:
        self._agree()
        return super().__call__(*fields)

    @override
    def server(self, function: Serve, *fields: Tensor) -> tuple[Tensor, ...]:
        self._agree()
        return super().server(function, *fields)

    @override
    def gather(self, values: Tensor) -> Tensor:
        self._agree()
        return super().gather(values)
