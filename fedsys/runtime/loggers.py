"""Where records go besides metrics.jsonl (the group `logger`)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from fedsys.errors import InputError

Record = dict[str, float]


class Logger(Protocol):
    """What a configuration of the group `logger` builds; used on the first rank only."""

    def begin(self, folder: Path, config: dict[str, Any]) -> None:
        """Start logging a run."""

    def record(self, record: Record) -> None:
        """Log one record."""

    def finish(self) -> None:
        """Everything was logged."""


class InBackground:
    """Loggers in a thread of their own, in order: no round waits for a disk or a server.

    What goes wrong there is told at the next record, or at the end. All of it is in one thread,
    because MLflow has a run for each.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = loggers
        self._thread = ThreadPoolExecutor(1, "loggers")
        self._latest: Future[None] | None = None

    def begin(self, folder: Path, config: dict[str, Any]) -> None:
        """Start logging; a logger that cannot is told at once."""
        for logger in self._loggers:
            self._thread.submit(logger.begin, folder, config).result()

    def record(self, record: Record) -> None:
        """Hand a record to the thread, once it has none to complain about."""
        if self._latest is not None and self._latest.done():
            self._latest.result()
        before, copy = self._latest, dict(record)

        def log() -> None:
            if before is not None:
                before.result()
            for logger in self._loggers:
                logger.record(copy)

        if self._loggers:
            self._latest = self._thread.submit(log)

    def finish(self) -> None:
        """Wait until everything was logged."""
        if self._latest is not None:
            self._latest.result()
        for logger in self._loggers:
            self._thread.submit(logger.finish).result()
        self._thread.shutdown()


class TensorBoard:
    """TensorBoard event files in the run directory; metrics against rounds."""

    def begin(self, folder: Path, config: dict[str, Any]) -> None:
        """Open the event file."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def record(self, record: Record) -> None:
        """One scalar for each value."""
        for name, value in record.items():
            self._writer.add_scalar(name, value, int(record["round"]))

    def finish(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandB:
    """Weights & Biases (`pip install fedsys[wandb]`).

    Args:
        project: the project's name there.
        mode: "online", "offline" or "disabled".
    """

    def __init__(self, project: str = "fedsys", mode: str = "online") -> None:
        self._project, self._mode = project, mode

    def begin(self, folder: Path, config: dict[str, Any]) -> None:
        """Start the run there."""
        wandb = _optional("wandb")
        self._run = wandb.init(
            project=self._project, mode=self._mode, dir=str(folder), name=folder.name, config=config
        )

    def record(self, record: Record) -> None:
        """Log one record."""
        self._run.log(record, step=int(record["step"]))

    def finish(self) -> None:
        """Finish the run there."""
        self._run.finish()


class MLflow:
    """MLflow (`pip install fedsys[mlflow]`).

    Args:
        experiment: the experiment's name.
        uri: of the tracking server; the run directory by default.
    """

    def __init__(self, experiment: str = "fedsys", uri: str | None = None) -> None:
        self._experiment, self._uri = experiment, uri

    def begin(self, folder: Path, config: dict[str, Any]) -> None:
        """Start the run there."""
        self._mlflow = _optional("mlflow")
        self._mlflow.set_tracking_uri(self._uri or (folder / "mlflow").as_uri())
        self._mlflow.set_experiment(self._experiment)
        self._mlflow.start_run(run_name=folder.name)
        self._mlflow.log_params({key: str(value)[:500] for key, value in config.items()})

    def record(self, record: Record) -> None:
        """Log one record."""
        self._mlflow.log_metrics(record, step=int(record["step"]))

    def finish(self) -> None:
        """Finish the run there."""
        self._mlflow.end_run()


def _optional(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"logger={name} needs {name}: pip install fedsys[{name}]") from None
