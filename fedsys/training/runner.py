"""The training loop: iterations, records and checkpoints of any algorithm on any problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fedsys.algorithms.averaged import averaged
from fedsys.communication import Communicator
from fedsys.core.algorithm import Algorithm, Measuring, State, guarantee_of
from fedsys.core.cancellation import CancelledError
from fedsys.core.constants import Theory
from fedsys.core.errors import InterruptedRunError, NonFiniteError
from fedsys.core.oracles import Oracle, Problem, Reporting
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.distributed.world import World
from fedsys.training.autograd_mode import stepping
from fedsys.training.best_record import BestRecord
from fedsys.training.checkpoint import Checkpoints
from fedsys.training.clock import TrainingClock
from fedsys.training.cross_site import ClientModels
from fedsys.training.evaluation import Evaluation
from fedsys.training.non_finite import NonFiniteLocator
from fedsys.training.observer import Observer
from fedsys.training.oracle_calls import OracleCalls
from fedsys.training.plan import Plan
from fedsys.training.points import Points
from fedsys.training.recorder import Recorder
from fedsys.training.requirements import check_requirements, theory_of
from fedsys.training.result import Record, Result
from fedsys.training.saving import Saving


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
        observer: what a user sees of every step.
        best: when the run stops early, and which record is kept.
        clock: measures the training time; runs that are stepped together share it.
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
    observer: Observer = field(default_factory=Observer)
    best: BestRecord = field(default_factory=BestRecord)
    clock: TrainingClock = field(default_factory=TrainingClock)

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
        with stepping(self._oracle):
            state, step = self.start()
            try:
                state, step = self._iterate(state, step)
            except (InterruptedRunError, NonFiniteError):
                self._finish_writing()
                raise
            return self.finish(state, step)

    def start(self) -> tuple[State, int]:
        """Return the state that the run starts from, and its step; open the records."""
        self._points = Points(self._method, self._oracle, self.communicator)
        self._evaluation = Evaluation(self._oracle, self.communicator, self.is_asked_to_stop)
        self._calls = OracleCalls()
        self._recorder = self._make_recorder()
        state, step = self._first_state()
        self.on_first_step(step, not self._recorder.pending)
        self._begin(state, step)
        return state, step

    def finish(self, state: State, step: int) -> Result:
        """Return the result of a run that ended in `state` after `step` steps."""
        self._finish_writing()
        rounds = self.communicator.traffic.rounds
        ending = self.best.ending(step, rounds)
        last = self._points.shared(self.algorithm.solution(state), step)
        z, of_step = self.best.kept(self._oracle) or (last, step)
        variables = self._points.named(self._points.of_all_clients(z, of_step))
        try:
            models = ClientModels(self._method, state, step, self.communicator)
            report = self._evaluation.report(z, models)
        except CancelledError:
            raise InterruptedRunError("stopped after the last round, in its report") from None
        for line in (report or {}).get("warnings", ()):
            self._recorder.warn(line)
        given = self.algorithm, self.theory, report, self.warnings, self.observer.states
        what = type(self.problem).__name__
        result = Result(state, self.records, variables, *given, *ending, what)
        return result if self._oracle.uses_autograd else result.for_autograd()

    def _saving(self, checkpoints: Checkpoints) -> Saving:
        parts = self.communicator, self.world, self.site, self._oracle
        return Saving(checkpoints, *parts, self.clock, self._calls, self.best)

    def _make_oracle(self) -> Oracle:
        site = replace(self.site, kind=self.algorithm.kind, peers=self.world.peers)
        return self.problem.oracle(site)

    def _make_recorder(self) -> Recorder:
        locator = NonFiniteLocator(
            self._method, self._oracle, self.communicator, self.world, self.site
        )
        return Recorder(
            self._points,
            self._evaluation,
            locator,
            self.clock,
            self.on_record,
            self.on_warning,
            self.records,
            self.warnings,
            guarantee_of(self.algorithm, self.theory),
            self._calls if hasattr(self._oracle, "calls") else None,
            self.best,
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
        oracle = self._oracle.initial()
        state: State = self._method.init(oracle, self.communicator.initial())
        self.count(oracle)
        if self.algorithm.needs_full_operator:
            self._calls.measure_passes(self._oracle, self.communicator)
        if snapshot is not None and self.checkpoints is not None:
            state = self._saving(self.checkpoints).load(snapshot, state)
            self._recorder.pending = dict(snapshot.pending)
        return state, step

    def _iterate(self, state: State, step: int) -> tuple[State, int]:
        communicator, method, oracle = self.communicator, self._method, self._oracle
        count, after = self.count, self.after
        while not self.is_over:
            sync = communicator.at(step)
            entering, at_step = state, oracle.at(step)
            state = method.step(state, at_step, sync)
            count(at_step)
            step += 1
            after(step, state, entering, bool(sync))
        return state, step

    def _begin(self, state: State, step: int) -> None:
        """Complete the records of the state that the run starts from, and start the clock."""
        recorder, rounds = self._recorder, self.communicator.traffic.rounds
        self.is_over = self.plan.is_over(step, rounds) or self.best.is_over
        recorder.begin(state, step)
        self._start = recorder.stamp(0) if step == 0 else None
        self.clock.start()
        self._complete_records(state, step, rounds)
        self.is_over |= self.best.is_over
        if self._start is not None and self._oracle.synchronised_buffers is not None:
            # The first step changes BatchNorm's statistics in place.
            self._record_start(state)
        self.observer.collect(step, state, self.communicator)

    def after(self, step: int, state: State, entering: State, communicated: bool) -> None:
        """Record, save and pass on the state after `step` steps, where that is due.

        Args:
            step: the number of steps so far.
            state: the state after them.
            entering: the state before the last of them.
            communicated: whether that was a communication step.
        """
        plan, rounds = self.plan, self.communicator.traffic.rounds
        self.is_over = over = plan.is_over(step, rounds)
        if self._start is not None:
            # The start is evaluated after the first step: importing the library of the metrics
            # takes seconds, and an error in the first step is reported before that.
            self._record_start(entering)
        if not self.observer.is_idle:
            self.observer.see(step, state, self.communicator)
        if not (communicated or over):
            return
        recorder, abandoned = self._recorder, False
        if over or rounds % plan.evaluate_every == 0:
            abandoned = not recorder.record(recorder.stamp(step), state, entering)
            self.is_over = over = over or self.best.is_over
        stops = abandoned or (communicated and not over and self.stops_after(rounds))
        due = over or stops or (self.checkpoints and self.checkpoints.is_due(rounds))
        if self.checkpoints and due:
            self._saving(self.checkpoints).save(state, step, recorder)
        if stops:
            where = "in the evaluation after" if abandoned else "after"
            raise InterruptedRunError(f"stopped {where} round {rounds}, step {step}")

    def count(self, oracle: Any) -> None:
        """Add the calls of the oracle of one step, if it counts them."""
        if self._recorder.calls is not None:
            self._calls.add(oracle)

    def _complete_records(self, state: State, step: int, rounds: int) -> None:
        """Add the record of the step that a run resumes from, if that step has none yet."""
        if self._recorder.pending:
            if not self._recorder.complete_pending(state, step):
                raise InterruptedRunError(f"stopped again in the evaluation after round {rounds}")
        elif self.is_over and not self._recorder.has_record_of(step):
            # The run was killed after its last checkpoint, before its summary was written, and
            # its records are lost.
            self._recorder.record(self._recorder.stamp(step), state, None)

    def _record_start(self, state: State) -> None:
        assert self._start is not None
        stamp, self._start = self._start, None
        if not self._recorder.record(stamp, state, state):
            raise InterruptedRunError("stopped before the first round")

    def _finish_writing(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.finish()
