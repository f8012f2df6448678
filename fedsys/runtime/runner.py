"""The loop: iterations, evaluation, checkpoints. It knows no algorithm and no problem by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsys.algorithms import Algorithm, State
from fedsys.communication import AllReduce, Every, Traffic
from fedsys.errors import (
    FedsysError,
    InputError,
    InterruptedRunError,
    KindError,
    NonFiniteError,
)
from fedsys.problems import KINDS, Oracle, Problem, Reporting, Site, Theory
from fedsys.runtime.checkpoint import Checkpoints, Snapshot
from fedsys.runtime.non_finite import Search, is_finite
from fedsys.runtime.plan import Plan
from fedsys.runtime.world import World

Record = dict[str, float]


@dataclass(frozen=True)
class Result:
    """What a run leaves."""

    state: State
    """The final state of the clients hosted here."""
    records: list[Record]
    """What was measured on the way."""
    variables: dict[str, Tensor]
    """The averaged variables by name."""
    algorithm: Algorithm[Any, Any]
    """The algorithm with all its numbers."""
    theory: Theory | None = None
    """The constants that some of them came from."""
    report: dict[str, Any] | None = None
    """A closer look at the end, of a problem that has one."""


@dataclass
class Runner:
    """Runs an algorithm on a problem, together with the other ranks of a connected world."""

    problem: Problem[Oracle]
    algorithm: Algorithm[Any, Any]
    communicator: AllReduce
    world: World
    site: Site
    plan: Plan
    checkpoints: Checkpoints | None = None
    on_record: Callable[[Record], None] = lambda record: None
    on_first_step: Callable[[int], None] = lambda step: None
    stops_after: Callable[[int], bool] = lambda rounds: False
    records: list[Record] = field(default_factory=list)
    theory: Theory | None = None
    _seconds: float = 0.0

    def prepare(self) -> None:
        """Make the oracle, and refuse a problem that the algorithm cannot solve."""
        self._oracle = self.world.together(self._make_oracle)
        kinds = [name for name, kind in KINDS.items() if isinstance(self._oracle, kind)]
        if self.algorithm.kind not in kinds:
            raise KindError(self.algorithm, self.problem, kinds)
        reason = self.algorithm.needs_all_clients
        if self.communicator.participation < 1 and reason:
            raise InputError(
                f"participation={self.communicator.participation:g} is not for "
                f"{type(self.algorithm).__name__}, which needs all clients in every round: {reason}"
            )
        self._tune()
        self.algorithm = self.algorithm.planned(self.plan.length(self.algorithm.schedule))

    @property
    def oracle(self) -> Oracle:
        """What the clients hosted here compute with, once prepared."""
        return self._oracle

    @torch.no_grad()
    @np.errstate(all="ignore")  # what is not finite is found and named at the next record
    def run(self) -> Result:
        """All iterations of a prepared runner, from the newest checkpoint if there is one."""
        with stepping(self._oracle):
            state, step = self._first_state()
            self.on_first_step(step)
            try:
                state = self._iterate(state, step)
            except (InterruptedRunError, NonFiniteError):
                self._finish_writing()
                raise
            self._finish_writing()
            z = self.communicator.aside()(self.algorithm.solution(state))
            variables = self._oracle.named(z[0])
            report = None
            if isinstance(self._oracle, Reporting):
                report = self._oracle.report(z, self.communicator.aside())
        if not self._oracle.uses_autograd:
            # Tensors made in inference mode are of no use to autograd ever after.
            state = type(state)(**{name: rows.clone() for name, rows in state.tensors().items()})
            variables = {name: value.clone() for name, value in variables.items()}
        return Result(state, self.records, variables, self.algorithm, self.theory, report)

    def description(self) -> dict[str, Any] | None:
        """What the problem has to say of its data, after `prepare`."""
        return self._oracle.describe() if isinstance(self._oracle, Reporting) else None

    def _iterate(self, state: State, step: int) -> State:
        communicator, plan = self.communicator, self.plan
        rounds = communicator.traffic.rounds
        last_seen = (step, state)
        start = self._stamp(0) if step == 0 else None
        self._started = perf_counter()
        if start is not None and self._oracle.rider is not None:
            # BatchNorm's statistics move with the first step.
            self._record(start, state, state, last_seen)
            start = None
        while not plan.is_over(step, rounds):
            sync = communicator.at(step)
            entering = state
            state = self.algorithm.step(state, self._oracle.at(step), sync)
            step, rounds = step + 1, communicator.traffic.rounds
            over = plan.is_over(step, rounds)
            if start is not None:
                # The start is evaluated after the first step: the metrics' library takes seconds
                # to import, and nobody should wait for it to learn of a mistake.
                self._record(start, entering, entering, last_seen)
                start = None
            if over or (sync and rounds % plan.evaluate_every == 0):
                self._record(self._stamp(step), state, entering, last_seen)
                last_seen = (step, state)
            stops = bool(sync) and not over and self.stops_after(rounds)
            due = over or stops or (sync and self.checkpoints and self.checkpoints.is_due(rounds))
            if self.checkpoints and due:
                self._save(self.checkpoints, state, step, last_seen)
            if stops:
                raise InterruptedRunError(f"stopped after round {rounds}, step {step}")
        return state

    def _make_oracle(self) -> Oracle:
        return self.problem.oracle(replace(self.site, kind=self.algorithm.kind))

    @torch.no_grad()
    def _tune(self) -> None:
        """Fill in the hyperparameters that are left to the theory."""
        waiting = self.algorithm.awaiting_theory()
        if not waiting:
            return
        self.communicator.open(self.world.transport, self.site.placement, Every())
        constants = self._oracle.constants(self.communicator.aside())
        if constants is None:
            name = type(self.algorithm).__name__
            raise InputError(
                f"{name}: {waiting[0]}=theory needs the constants of the problem, which "
                f"{type(self.problem).__name__} does not know; give algorithm.{waiting[0]} a number"
            )
        self.theory = Theory(
            constants,
            self.site.placement.clients,
            self.plan.steps,
            self.plan.rounds,
            self._oracle.finite_sum,
        )
        self.algorithm = self.algorithm.tuned(self.theory)

    def _first_state(self) -> tuple[State, int]:
        snapshot = self.checkpoints.newest() if self.checkpoints else None
        step = 0 if snapshot is None else snapshot.step
        self.communicator.open(
            self.world.transport,
            self.site.placement,
            self.algorithm.schedule,
            self.site.seed,
            step,
            self._oracle.sizes,
            self._oracle.rider,
        )
        # A state to go on from has the shapes of a fresh one, so that is made in either case.
        state: State = self.algorithm.init(self._oracle.at_start(), self.communicator.at_start())
        if snapshot is not None and self.checkpoints is not None:
            fields, hosted = state.tensors(), len(self.site.hosted)
            like = next(iter(fields.values()))
            memory = {name: like.new_empty(hosted, n) for name, n in snapshot.memory.items()}
            wanted = {**fields, **memory}
            rows = self.checkpoints.load(snapshot, wanted, self._oracle.rider, self.site)
            state = type(state)(**{name: rows[name] for name in fields})
            self.communicator.remember({name: rows[name] for name in memory})
            self.communicator.traffic = Traffic(**snapshot.traffic)
            self._seconds = snapshot.seconds
        return state, step

    def _save(
        self, checkpoints: Checkpoints, state: State, step: int, last_seen: tuple[int, State]
    ) -> None:
        with self._clock_stopped():
            stops = self.communicator.on_nonfinite == "stop"
            broken = stops and not is_finite(state)
            if any(self.world.transport.all_gather_object(broken)):
                # Those that are there are worth more than this one.
                raise self._search().error(*last_seen, step)
            memory = self.communicator.memory
            lengths = {name: rows.shape[1] for name, rows in memory.items()}
            traffic = self.communicator.traffic.as_dict()
            snapshot = Snapshot(step, self._seconds, traffic, lengths)
            fields = {**state.tensors(), **memory}
            checkpoints.save(snapshot, fields, self._oracle.rider, self.site)

    def _finish_writing(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.finish()

    def _stamp(self, step: int) -> Record:
        traffic = self.communicator.traffic.as_dict()
        if self.communicator.on_nonfinite == "stop":
            del traffic["dropped"]
        return {"step": step, "round": traffic.pop("rounds"), **traffic}

    def _record(
        self, stamp: Record, state: State, entering: State, last_seen: tuple[int, State]
    ) -> None:
        """Evaluate at the mean point; `entering` is the state before this step was averaged."""
        with self._clock_stopped():
            seconds = self._seconds if stamp["step"] else 0.0
            aside = self.communicator.aside()
            points = {name: aside(z) for name, z in self.algorithm.outputs(state).items()}
            if not all(bool(z[0].isfinite().all()) for z in points.values()):
                raise self._search().error(*last_seen, int(stamp["step"]))
            drift = self._drift(self.algorithm.solution(entering))
            metrics = {
                f"{name}_{metric}".lstrip("_"): value
                for name, z in points.items()
                for metric, value in self._oracle.evaluate(z, aside).items()
            }
            record = {**stamp, "seconds": seconds, "drift": drift, **metrics}
            self.records.append(record)
            failure: FedsysError | None = None
            try:
                self.on_record(record)
            except FedsysError as error:
                failure = error
            # The others wait for the first rank here, off the record, not in the next round; and
            # leave with it, if it could not keep the record.
            failures = torch.tensor([float(failure is not None)])
            self.world.transport.all_reduce(failures)
            if failures.item() > 0:
                raise failure or InputError("the first rank could not keep a record")

    def _drift(self, z: Tensor) -> float:
        """The mean squared distance of the clients' points to their mean."""
        aside = self.communicator.aside()
        distances = (z - aside(z)).square().sum(1, keepdim=True)
        return float(aside(distances)[0])

    def _search(self) -> Search:
        return Search(self.algorithm, self._oracle, self.communicator, self.world, self.site)

    @contextmanager
    def _clock_stopped(self) -> Iterator[None]:
        """Evaluation and checkpoints are not training time."""
        self._seconds += perf_counter() - self._started
        yield
        self._started = perf_counter()


def stepping(oracle: Oracle) -> AbstractContextManager[None]:
    """What an algorithm's steps run in: the cheapest mode of torch that the oracle can do with."""
    return torch.no_grad() if oracle.uses_autograd else torch.inference_mode()
