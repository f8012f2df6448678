"""The state of a run in checkpoints: what is saved, and how a run continues from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fedsys.communication import Communicator
from fedsys.communication.values import boolean
from fedsys.core.algorithm import State
from fedsys.core.errors import InputError
from fedsys.core.oracles import Oracle
from fedsys.core.site import Site
from fedsys.core.traffic import Traffic
from fedsys.distributed.world import World
from fedsys.training.best_record import BestRecord
from fedsys.training.checkpoint import Checkpoints, Snapshot
from fedsys.training.clock import TrainingClock
from fedsys.training.non_finite import is_finite
from fedsys.training.oracle_calls import OracleCalls
from fedsys.training.recorder import Recorder


@dataclass(frozen=True)
class Saving:
    """Writes state, counters and best record of a run to checkpoints, and reads them."""

    checkpoints: Checkpoints
    communicator: Communicator
    world: World
    site: Site
    oracle: Oracle
    clock: TrainingClock
    calls: OracleCalls
    best: BestRecord

    def load(self, snapshot: Snapshot, initial: State) -> State:
        """Return the state of a checkpoint, whose fields are those of the initial state."""
        fields, hosted = initial.tensors(), len(self.site.hosted)
        like = next(iter(fields.values()))
        memory = {name: like.new_empty(hosted, n) for name, n in snapshot.memory.items()}
        if fields.keys() & memory.keys():
            raise InputError("the checkpoint names a variable twice; choose another run directory")
        best = {name: like.new_empty(hosted, n) for name, n in snapshot.best_rows.items()}
        wanted = {**fields, **memory, **best}
        buffers = self.oracle.synchronised_buffers
        rows = self.checkpoints.load(snapshot, wanted, buffers, self.site)
        self.communicator.load_state({name: rows[name] for name in memory})
        self.best.restore(snapshot.best, {name: rows[name] for name in best})
        self.communicator.traffic = Traffic(**snapshot.traffic)
        self.clock.seconds = snapshot.seconds
        self.calls.calls, self.calls.passes = snapshot.calls, snapshot.passes
        return type(initial)(**{name: rows[name] for name in fields})

    def save(self, state: State, step: int, recorder: Recorder) -> None:
        """Write a checkpoint; refuse a state that is not finite."""
        with self.clock.paused():
            stops = self.communicator.aggregation.on_nonfinite == "stop"
            broken = stops and not is_finite(state)
            if any(self.world.transport.all_gather_values(broken, boolean)):
                # A non-finite state must not replace the checkpoints before it.
                raise recorder.non_finite_error(step)
            memory, best = self.communicator.memory, self.best.rows
            snapshot = Snapshot(
                step,
                self.clock.seconds,
                self.communicator.traffic.as_dict(),
                {name: rows.shape[1] for name, rows in memory.items()},
                pending=recorder.pending,
                calls=self.calls.calls,
                passes=self.calls.passes,
                best={} if self.best.standing is None else asdict(self.best.standing),
                best_rows={name: rows.shape[1] for name, rows in best.items()},
            )
            fields = {**state.tensors(), **memory, **best}
            buffers = self.oracle.synchronised_buffers
            self.checkpoints.save(snapshot, fields, buffers, self.site)
