"""A run that is written and shown: its run directory, its checkpoints, its loggers, its console.

The command line and `fedsys.run` both run it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedsys.communication.values import boolean, integer, list_of, optional
from fedsys.core.errors import InputError
from fedsys.core.metrics import Record
from fedsys.training.checkpoint import Checkpoints
from fedsys.training.compared_settings import compared_settings
from fedsys.training.config import CheckpointSettings
from fedsys.training.loggers import BackgroundLogger
from fedsys.training.option_names import COMMAND_LINE, OptionNames
from fedsys.training.result import Result
from fedsys.training.run_directory import RunDirectory
from fedsys.training.run_outputs import RunAbout, RunOutputs
from fedsys.training.runner import Runner
from fedsys.training.summary import numbers, outcome, parse_outcome, parse_record

_SECONDS_FOR_A_RUN_THAT_ENDS = 5.0
"""How long to wait for the ranks of a launcher that was killed; the kernel ends them at once."""
_RECORDS_PER_MESSAGE = 2000


class RecordedRun:
    """A prepared runner with its run directory, its checkpoints and, on the first rank, outputs.

    Args:
        runner: the prepared runner.
        about: what is run, by its settings.
        directory: the run directory; None for a run that is only shown.
        checkpoint: how often checkpoints are written, and how many are kept.
        resume: whether a run in the directory is continued.
        warn: called with a line about each problem with a file, on the first rank.
        loggers: where records are sent as well.
        shows: whether the console shows the progress and the results.
        options: what messages call the options.
    """

    def __init__(
        self,
        runner: Runner,
        about: RunAbout,
        directory: RunDirectory | None,
        checkpoint: CheckpointSettings,
        resume: bool,
        warn: Callable[[str], None],
        loggers: BackgroundLogger | None = None,
        shows: bool = True,
        options: OptionNames = COMMAND_LINE,
    ) -> None:
        self._runner, self._world, self._about = runner, runner.world, about
        self._directory, self._checkpoint, self._resume = directory, checkpoint, resume
        self._warn, self._options = warn, options
        self._outputs: RunOutputs | None = None
        if self._world.rank == 0:
            loggers = loggers or BackgroundLogger([])
            self._outputs = RunOutputs(runner, directory, loggers, about, shows, options)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the run directory while the body runs; forget it if the run is refused."""
        directory, runner = self._directory, self._runner
        try:
            if directory is not None:
                self._compared = self._world.on_all_ranks(self._open)
                runner.checkpoints = self._checkpoints(directory)
            yield
        except InputError:
            if directory is not None:
                directory.forget()
            raise
        finally:
            if self._outputs is not None:
                self._outputs.restore_terminal()
            if runner.checkpoints is not None:
                runner.checkpoints.settle()
            if directory is not None:
                directory.close()

    def finished(self) -> Record | None:
        """Return the last record of a run that is finished already, on every rank."""
        if self._directory is None:
            return None
        self._summary = None
        if self._world.rank == 0 and self._resume:
            patience = self._runner.best.options.patience
            self._summary = self._directory.finished(self._runner.plan.is_over, patience)
        gather = self._world.transport.all_gather_values
        final = self._summary and self._summary["final"]
        found = gather(final, optional(parse_record))[0]
        is_known = gather(self._compared, boolean)[0]
        if found is not None and not is_known and self._runner.checkpoints is not None:
            self._runner.checkpoints.newest()  # refuses a checkpoint of other settings
        return found

    def show_finished(self) -> None:
        """Show the results of a run that is finished already."""
        if self._summary is not None and self._outputs is not None:
            self._outputs.show_finished(self._summary)

    def restored(self, final: Record) -> Result | None:
        """Return the result of a finished run; None if its last checkpoint is gone.

        Args:
            final: its last record.
        """
        assert self._runner.checkpoints is not None
        newest = self._runner.checkpoints.newest()
        if newest is None or newest.step != final["step"]:
            return None
        self._runner.on_first_step = self._read_records
        return self._runner.run()

    def train(self, on_record: Callable[[Record], None]) -> tuple[Result, Record]:
        """Run to the end; return the result, and the last record.

        Args:
            on_record: called with every record before it is written.
        """
        runner = self._runner

        def record(new: Record) -> None:
            on_record(new)
            if self._outputs is not None:
                self._outputs.record(new)

        runner.on_first_step = self._begin
        runner.on_record = record
        result = runner.run()
        outcomes = self._world.transport.all_gather_values(
            outcome(runner.communicator, result), parse_outcome
        )
        if self._outputs is not None:
            waited = [seconds for seconds, _, _ in outcomes]
            dropped = sum((counts for _, counts, _ in outcomes), Counter())
            self._outputs.finish(result, waited, dropped)
        return result, outcomes[0][2][-1]

    def _open(self) -> bool:
        if self._world.rank != 0:
            return False
        assert self._directory is not None
        # The other ranks wait for this one in a collective; it must answer before they time out.
        patience = self._runner.communicator.connection.timeout / 2
        if not self._world.is_restart:
            patience = min(patience, _SECONDS_FOR_A_RUN_THAT_ENDS)
        return self._directory.open(self._about.config, self._resume, patience)

    def _checkpoints(self, directory: RunDirectory) -> Checkpoints:
        wanted = self._checkpoint
        return Checkpoints(
            directory.checkpoints,
            self._world,
            wanted.every,
            wanted.keep,
            self._resume,
            wanted.minutes,
            warn=self._warn,
            settings=compared_settings(self._about.config, numbers(self._runner.algorithm)),
            compared=self._compared,
            options=self._options,
        )

    def _begin(self, step: int, is_recorded: bool) -> None:
        """Open the outputs; give the records of earlier steps to all ranks."""

        def begin() -> None:
            if self._outputs is not None:
                self._outputs.begin(step, is_recorded)

        self._world.on_all_ranks(begin)
        if step:
            self._share_records()

    def _read_records(self, step: int, is_recorded: bool) -> None:
        """Read the records of a finished run on all ranks, and write nothing."""

        def read() -> None:
            if self._directory is not None and self._world.rank == 0:
                found = self._directory.read_metrics().records
                last = step if is_recorded else step - 1
                self._runner.records.extend(r for r in found if r["step"] <= last)

        self._world.on_all_ranks(read)
        self._share_records()

    def _share_records(self) -> None:
        """Extend the records of the other ranks by those of the first rank."""
        if self._world.ranks == 1:
            return
        gather, records = self._world.transport.all_gather_values, self._runner.records
        own = records[:] if self._world.rank == 0 else []
        for start in range(0, gather(len(own), integer)[0], _RECORDS_PER_MESSAGE):
            part = own[start : start + _RECORDS_PER_MESSAGE]
            received = gather(part, list_of(parse_record))[0]
            if self._world.rank != 0:
                records.extend(received)
