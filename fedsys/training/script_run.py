"""What a run of the Python API writes and shows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

from fedsys.communication.values import text
from fedsys.core.errors import InputError, require
from fedsys.core.fields import Checked
from fedsys.core.metrics import Record
from fedsys.training.described import described
from fedsys.training.option_names import PYTHON
from fedsys.training.redaction import redacted
from fedsys.training.result import Result
from fedsys.training.runner import Runner

_GROUPS = ("algorithm", "problem", "communicator")


@dataclass(frozen=True)
class ScriptOutput(Checked):
    """Where a run of the Python API is written, and whether it is shown.

    Args:
        run_dir: the run directory; None writes nothing.
        resume: whether a run in the directory is continued; None: yes.
        checkpoint_every: the number of rounds between two checkpoints, written after ten minutes in
            any case.
        progress: whether the console shows the progress and the results.
        on_record: called with every record.
    """

    run_dir: str | os.PathLike[str] | None
    resume: bool | None
    checkpoint_every: int
    progress: bool
    on_record: Callable[[Record], None]
    start: float = field(default_factory=monotonic, init=False)

    name: ClassVar[str] = "run"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run_dir is not None:
            path = os.fspath(self.run_dir) if isinstance(self.run_dir, str | os.PathLike) else ""
            valid = isinstance(path, str) and path and "\0" not in path
            require(bool(valid), "run", "run_dir", self.run_dir, "the path of a folder")
        elif self.resume is not None:
            raise InputError(f"resume={self.resume} needs run_dir=, the folder of the run")
        every = self.checkpoint_every
        require(every >= 0, "run", "checkpoint_every", every, "0 or more rounds")

    def run(self, runner: Runner, given: Mapping[str, Any], backend: str) -> Result:
        """Run a prepared runner, and write and show what was asked for.

        Args:
            runner: the prepared runner.
            given: the arguments of the run that can change its numbers.
            backend: the backend of torch.distributed.
        """
        if self.run_dir is None and not self.progress:
            runner.on_record = self.on_record
            return runner.run()
        # Hydra, whose import takes time, is part of what both kinds of runs share.
        from fedsys.training.config import CheckpointSettings
        from fedsys.training.recorded_run import RecordedRun
        from fedsys.training.run_directory import RunDirectory
        from fedsys.training.run_outputs import RunAbout

        about = RunAbout(self._config(runner, given), _names(given), backend, self._seconds)
        directory = None
        if self.run_dir is not None:
            mine = str(Path(self.run_dir).absolute())
            path = runner.world.transport.all_gather_values(mine, text)[0]
            directory = RunDirectory(Path(path), _warn, PYTHON)
        checkpoint = CheckpointSettings(every=self.checkpoint_every)
        resume = self.resume is not False
        shows = self.progress
        recorded = RecordedRun(
            runner, about, directory, checkpoint, resume, _warn, shows=shows, options=PYTHON
        )
        with recorded.opened():
            try:
                final = recorded.finished()
                result = None if final is None else recorded.restored(final)
                if result is not None:
                    recorded.show_finished()
                    return result
                return recorded.train(self.on_record)[0]
            except Exception:
                if directory is not None:
                    directory.forget()  # a mistake before the first record must not block the path
                raise

    def _seconds(self) -> float:
        return monotonic() - self.start

    def _config(self, runner: Runner, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings as plain data; only the first rank, which writes, needs them."""
        if runner.world.rank != 0:
            return {}
        clients = runner.site.placement.clients
        found: dict[str, Any] = redacted({**described(given), "clients": clients})
        return {**found, "checkpoint": {"every": self.checkpoint_every}}


def _names(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the classes of the parts of a run, as its title and reports call them."""
    return {group: type(given[group]).__name__ for group in _GROUPS}


def _warn(line: str) -> None:
    warnings.warn(line, RuntimeWarning, stacklevel=2)
