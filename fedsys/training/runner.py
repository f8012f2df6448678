"""The training loop: iterations, records and checkpoints of any algorithm on any problem."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsys.algorithms.averaged import averaged
from fedsys.communication import Communicator
from fedsys.communication.values import boolean
from fedsys.core.algorithm import Algorithm, Measuring, State, guarantee_of
from fedsys.core.cancellation import CancelledError
from fedsys.core.constants import Theory
from fedsys.core.errors import InputError, InterruptedRunError, NonFiniteError
from fedsys.core.oracles import Oracle, Problem, Reporting, Stateful
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.core.traffic import Traffic
from fedsys.distributed.world import World
from fedsys.training.checkpoint import Checkpoints, Snapshot
from fedsys.training.clock import TrainingClock
from fedsys.training.evaluation import Evaluation
from fedsys.training.non_finite import NonFiniteLocator, is_finite
from fedsys.training.plan import Plan
from fedsys.training.points import Points
from fedsys.training.recorder import Recorder
from fedsys.training.requirements import check_requirements, theory_of
from fedsys.training.result import Record, Result


@dataclass
class Runner:
    """Runs an algorithm on a problem, together with the other ranks of a connected world.

    Args:
        problem: what to solve.
        algorithm: how to solve it.
        communicator: how clients communicate.
        world: the connected ranks.
        site: the clients that this rank hosts, and their seed, dtype and device.
        plan: how long to run, and how often to evaluate.
        checkpoints: where to save the state and resume from; None for no checkpoints.
        on_record: called with every record.
        on_warning: called with every warning, on the first rank.
        on_first_step: called once before the first step, with its number and whether the record of
            the state that the run starts from is complete.
        stops_after: whether the run is to stop after so many rounds; all ranks answer alike.
        is_asked_to_stop: whether a stop was requested, as far as this rank knows.
        records: the records of the run; a resumed run starts with the earlier ones.
        theory: the constants that hyperparameters were computed from, after `prepare`.
        warnings: the warnings of the run.
    """

    problem: Problem[Oracle]
    algorithm: Algorithm[Any, Any]
    communicator: Communicator
    world: World
    site: Site
    plan: Plan
    checkpoints: Checkpoints | None = None
    on_record: Callable[[Record], None] = lambda record: None
    on_warning: Callable[[str], None] = lambda line: None
    on_first_step: Callable[[int, bool], None] = lambda step, is_recorded: None
    stops_after: Callable[[int], bool] = lambda rounds: False
    is_asked_to_stop: Callable[[], bool] = lambda: False
    records: list[Record] = field(default_factory=list)
    theory: Theory | None = None
    warnings: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        """Create the oracle, and refuse a problem that the algorithm cannot solve."""
        self._oracle = self.world.on_all_ranks(self._make_oracle)
        check_requirements(
            self.algorithm, self.problem, self._oracle, self.communicator, self.world
        )
        self._tune()
        self.communicator.accept(self.algorithm.schedule, self.algorithm.needs_server)
        self.algorithm = self.algorithm.planned(self.plan.length(self.algorithm.schedule))
        self._method = averaged(self.algorithm)

    @property
    def oracle(self) -> Oracle:
        """The oracle of the clients hosted here, after `prepare`."""
        return self._oracle

    def description(self) -> dict[str, Any] | None:
        """Return what the problem reports about its data, after `prepare`."""
        return self._oracle.describe() if isinstance(self._oracle, Reporting) else None

    @torch.no_grad()
    @np.errstate(all="ignore")  # the next record finds and reports non-finite values
    def run(self) -> Result:
        """Run all iterations after `prepare`, from the newest checkpoint if there is one."""
        self._points = Points(self._method, self._oracle, self.communicator)
        self._evaluation = Evaluation(self._oracle, self.communicator, self.is_asked_to_stop)
        self._clock = TrainingClock()
        self._recorder = self._make_recorder()
        with stepping(self._oracle):
            state, step = self._first_state()
            self.on_first_step(step, not self._recorder.pending)
            try:
                state, step = self._iterate(state, step)
            except (InterruptedRunError, NonFiniteError):
                self._finish_writing()
                raise
            self._finish_writing()
            z = self._points.shared(self.algorithm.solution(state), step)
            variables = self._named(self._points.of_all_clients(z, step))
            try:
                report = self._evaluation.report(z)
            except CancelledError:
                raise InterruptedRunError("stopped after the last round, in its report") from None
        for line in (report or {}).get("warnings", ()):
            self._recorder.warn(line)
        if not self._oracle.uses_autograd:
            # Autograd cannot use tensors that were created in inference mode; copies are normal.
            state = type(state)(**{name: rows.clone() for name, rows in state.tensors().items()})
            variables = {name: value.clone() for name, value in variables.items()}
        return Result(
            state, self.records, variables, self.algorithm, self.theory, report, self.warnings
        )

    def _make_oracle(self) -> Oracle:
        return self.problem.oracle(replace(self.site, kind=self.algorithm.kind))

    def _make_recorder(self) -> Recorder:
        locator = NonFiniteLocator(
            self._method, self._oracle, self.communicator, self.world, self.site
        )
        return Recorder(
            self._points,
            self._evaluation,
            locator,
            self._clock,
            self.on_record,
            self.on_warning,
            self.records,
            self.warnings,
            guarantee_of(self.algorithm, self.theory),
        )

    @torch.no_grad()
    def _tune(self) -> None:
        """Compute the hyperparameters that are left to the theory or to a measurement."""
        if self.algorithm.measures and isinstance(self.algorithm, Measuring):
            self.communicator.open(self.world.transport, self.site.placement, Every())
            unmetered = self.communicator.unmetered()
            self.algorithm = self.algorithm.measured(self._oracle.initial(), unmetered)
        if waiting := self.algorithm.awaiting_theory():
            self.communicator.open(self.world.transport, self.site.placement, Every())
            self.theory = theory_of(
                waiting,
                self.algorithm,
                self.problem,
                self._oracle,
                self.communicator,
                self.site.placement,
                self.plan,
            )
            self.algorithm = self.algorithm.tuned(self.theory)

    def _first_state(self) -> tuple[State, int]:
        """Return the initial state or that of the newest checkpoint, and its step."""
        snapshot = self.checkpoints.newest() if self.checkpoints else None
        step = 0 if snapshot is None else snapshot.step
        self.communicator.open(
            self.world.transport,
            self.site.placement,
            self.algorithm.schedule,
            self.site.seed,
            step,
            self._oracle.sizes,
            self._oracle.synchronised_buffers,
        )
        # Also for a checkpoint: its state has the fields and shapes of an initial one.
        state: State = self._method.init(self._oracle.initial(), self.communicator.initial())
        if snapshot is not None and self.checkpoints is not None:
            state = self._load(self.checkpoints, snapshot, state)
        return state, step

    def _load(self, checkpoints: Checkpoints, snapshot: Snapshot, initial: State) -> State:
        fields, hosted = initial.tensors(), len(self.site.hosted)
        like = next(iter(fields.values()))
        memory = {name: like.new_empty(hosted, n) for name, n in snapshot.memory.items()}
        if fields.keys() & memory.keys():
            raise InputError("the checkpoint names a variable twice; give another run.name")
        wanted = {**fields, **memory}
        rows = checkpoints.load(snapshot, wanted, self._oracle.synchronised_buffers, self.site)
        self.communicator.load_state({name: rows[name] for name in memory})
        self.communicator.traffic = Traffic(**snapshot.traffic)
        self._clock.seconds = snapshot.seconds
        self._recorder.pending = dict(snapshot.pending)
        return type(initial)(**{name: rows[name] for name in fields})

    def _iterate(self, state: State, step: int) -> tuple[State, int]:
        communicator, plan, recorder = self.communicator, self.plan, self._recorder
        rounds = communicator.traffic.rounds
        recorder.begin(state, step)
        start = recorder.stamp(0) if step == 0 else None
        self._clock.start()
        self._complete_records(state, step, rounds)
        if start is not None and self._oracle.synchronised_buffers is not None:
            # The first step changes BatchNorm's statistics in place.
            self._record_start(start, state)
            start = None
        while not plan.is_over(step, rounds):
            sync = communicator.at(step)
            entering = state
            state = self._method.step(state, self._oracle.at(step), sync)
            step, rounds = step + 1, communicator.traffic.rounds
            over = plan.is_over(step, rounds)
            if start is not None:
                # The start is evaluated after the first step: importing the library of the metrics
                # takes seconds, and an error in the first step is reported before that.
                self._record_start(start, entering)
                start = None
            abandoned = False
            if over or (sync and rounds % plan.evaluate_every == 0):
                abandoned = not recorder.record(recorder.stamp(step), state, entering)
            stops = abandoned or (bool(sync) and not over and self.stops_after(rounds))
            due = over or stops or (sync and self.checkpoints and self.checkpoints.is_due(rounds))
            if self.checkpoints and due:
                self._save(self.checkpoints, state, step)
            if stops:
                where = "in the evaluation after" if abandoned else "after"
                raise InterruptedRunError(f"stopped {where} round {rounds}, step {step}")
        return state, step

    def _complete_records(self, state: State, step: int, rounds: int) -> None:
        """Add the record of the step that a run resumes from, if that step has none yet."""
        if self._recorder.pending:
            if not self._recorder.complete_pending(state, step):
                raise InterruptedRunError(f"stopped again in the evaluation after round {rounds}")
        elif self.plan.is_over(step, rounds) and not self._recorder.has_record_of(step):
            # The run was killed after its last checkpoint, before its summary was written, and
            # its records are lost.
            self._recorder.record(self._recorder.stamp(step), state, None)

    def _record_start(self, stamp: Record, state: State) -> None:
        if not self._recorder.record(stamp, state, state):
            raise InterruptedRunError("stopped before the first round")

    def _save(self, checkpoints: Checkpoints, state: State, step: int) -> None:
        with self._clock.paused():
            stops = self.communicator.aggregation.on_nonfinite == "stop"
            broken = stops and not is_finite(state)
            if any(self.world.transport.all_gather_values(broken, boolean)):
                # A non-finite state must not replace the checkpoints before it.
                raise self._recorder.non_finite_error(step)
            memory = self.communicator.memory
            lengths = {name: rows.shape[1] for name, rows in memory.items()}
            traffic = self.communicator.traffic.as_dict()
            snapshot = Snapshot(
                step, self._clock.seconds, traffic, lengths, pending=self._recorder.pending
            )
            fields = {**state.tensors(), **memory}
            checkpoints.save(snapshot, fields, self._oracle.synchronised_buffers, self.site)

    def _finish_writing(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.finish()

    def _named(self, z: Tensor) -> dict[str, Tensor]:
        """Return the variables, and the buffers that they were evaluated with, by name."""
        if isinstance(self._oracle, Stateful):
            return self._oracle.trained(z, self.communicator.unmetered())
        return self._oracle.named(z)


def stepping(oracle: Oracle) -> AbstractContextManager[None]:
    """Return the cheapest autograd mode of torch that the oracle works in, for the steps."""
    return torch.no_grad() if oracle.uses_autograd else torch.inference_mode()
