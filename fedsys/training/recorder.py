"""Records: the metrics, traffic and training time of a run after some of its rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsys.core.algorithm import Guarantee, State
from fedsys.core.cancellation import CancelledError
from fedsys.core.errors import FedsysError, InputError, NonFiniteError
from fedsys.core.metrics import Record
from fedsys.training.best_record import BestRecord
from fedsys.training.clock import TrainingClock
from fedsys.training.evaluation import Evaluation
from fedsys.training.non_finite import NonFiniteLocator
from fedsys.training.oracle_calls import OracleCalls
from fedsys.training.points import Points


@dataclass
class Recorder:
    """Evaluates states of a run, together with the other ranks, and passes the records on.

    Args:
        points: returns the points at which a state is evaluated.
        evaluation: computes the metrics.
        locator: names the client that caused a non-finite value.
        clock: measures the training time, without evaluation.
        on_record: called with every record.
        on_warning: called with every new warning of the oracle, on the first rank.
        records: the records so far; new ones are appended.
        warnings: the warnings so far; new ones are appended.
        guarantee: what a theorem bounds in every record of this run, or None.
        calls: the operators and gradients that a client has evaluated; None if the oracle does not
            count them.
        best: follows the records, to stop the run and to keep the best one.
        pending: a record without its metrics, if all ranks abandoned its evaluation. The
            checkpoint stores it, because it cannot be computed from the state.
    """

    points: Points
    evaluation: Evaluation
    locator: NonFiniteLocator
    clock: TrainingClock
    on_record: Callable[[Record], None]
    on_warning: Callable[[str], None]
    records: list[Record]
    warnings: list[str]
    guarantee: Guarantee | None = None
    calls: OracleCalls | None = None
    best: BestRecord = field(default_factory=BestRecord)
    pending: Record = field(default_factory=dict)

    def begin(self, state: State, step: int) -> None:
        """Set the state that the run starts from."""
        self._last_recorded = (step, state)

    def stamp(self, step: int) -> Record:
        """Return the first columns of a record: step, round, traffic and calls of the oracle."""
        communicator = self.points.communicator
        traffic = communicator.traffic.as_dict()
        if communicator.aggregation.on_nonfinite == "stop":
            del traffic["dropped"]
        calls = {} if self.calls is None else {"oracle_calls": self.calls.total}
        return {"step": step, "round": traffic.pop("rounds"), **traffic, **calls}

    def record(self, stamp: Record, state: State, entering: State | None) -> bool:
        """Evaluate `state` and pass its record on.

        Args:
            stamp: the first columns of the record.
            state: the state after the step of the record.
            entering: the state before that step, where clients have not been averaged yet;
                without it the record has no drift.

        Returns:
            False if all ranks abandoned the evaluation because the run is to stop; `pending` is
            then the incomplete record.
        """
        with self.clock.paused():
            step = int(stamp["step"])
            points = self.points.outputs(state, step)
            if not all(self.points.are_finite(z, step) for z in points.values()):
                raise self.non_finite_error(step)
            record = {**stamp, "seconds": self.clock.seconds if step else 0.0}
            if entering is not None:
                solution = self.points.algorithm.solution(entering)
                record["drift"] = self.points.drift(solution, max(step - 1, 0))
            is_complete = self._complete(record, points, state)
        self._last_recorded = (step, state)
        return is_complete

    def complete_pending(self, state: State, step: int) -> bool:
        """Evaluate the pending record again; return False if that was abandoned as well."""
        with self.clock.paused():
            return self._complete(self.pending, self.points.outputs(state, step), state)

    def has_record_of(self, step: int) -> bool:
        """Return whether the first rank, which reads the records, has one of this step."""
        found = torch.tensor([float(any(record["step"] == step for record in self.records))])
        self.locator.world.transport.all_reduce(found)
        return bool(found.item() > 0)

    def warn(self, line: str) -> None:
        """Add a warning."""
        self.warnings.append(line)
        if self.locator.world.rank == 0:
            self.on_warning(line)

    def non_finite_error(self, step: int) -> NonFiniteError:
        """Repeat the steps from the last record to `step`; name the first client that failed."""
        return self.locator.error(*self._last_recorded, step)

    def _complete(self, record: Record, points: dict[str, Tensor], state: State) -> bool:
        try:
            found = self.evaluation.metrics(points)
            if self.guarantee is not None:
                steps = int(record["step"])
                found.update(self.evaluation.guaranteed(self.guarantee, state, steps))
        except CancelledError:
            self.pending = record
            return False
        record, self.pending = {**record, **found}, {}
        self.best.see(record, points, self.points.oracle, self.locator.world)
        self._pass_on_warnings(record)
        self.records.append(record)
        failure: FedsysError | None = None
        try:
            self.on_record(record)
        except FedsysError as error:
            failure = error
        # The other ranks wait for the first rank here, where the clock is stopped, and not in the
        # next round. They end together with it if it could not write the record.
        failures = torch.tensor([float(failure.exit_code if failure else 0)])
        self.locator.world.transport.all_reduce(failures)
        if failures.item() > 0:
            kind = InputError if failures.item() == InputError.exit_code else FedsysError
            raise failure or kind("the first rank could not write a record")
        return True

    def _pass_on_warnings(self, record: Record) -> None:
        """Report each warning of the oracle once; before any training, those of options only."""
        found: dict[str, str] = getattr(self.points.oracle, "warnings", {})
        if record["step"] == 0:
            for topic in [topic for topic in found if not topic.startswith("option ")]:
                del found[topic]
        for line in [*found.values()][len(self.warnings) :]:
            self.warn(f"round {record['round']:.0f}: {line}")
