"""Loggers (the group `logger`): where records are sent besides metrics.jsonl."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from fedsys.core.errors import FedsysError, InputError, require
from fedsys.core.fields import check_types, type_hints
from fedsys.core.metrics import Record, client_metrics_of

_MOST_CLIENTS = 64
"""The clients whose metrics are logged one by one."""


class Logger(Protocol):
    """The interface of a logger; only the first rank has loggers."""

    def begin(self, folder: Path, config: dict[str, Any]) -> None:
        """Start logging a run."""

    def record(self, record: Record) -> None:
        """Log one record."""

    def finish(self) -> None:
        """Finish after the last record."""


class BackgroundLogger:
    """Runs loggers in a background thread, so that no round waits for a disk or a server.

    An error of a logger is raised at the next record or at the end. All loggers share one thread,
    because the active run of MLflow belongs to a thread.

    Args:
        loggers: called in this order.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        for logger in loggers:
            _require_package(logger)
        self._loggers = loggers
        self._thread = ThreadPoolExecutor(1, "loggers")
        self._latest: Future[None] | None = None

    def begin(self, folder: Path, config: dict[str, Any]) -> None:
        """Start logging; raise at once if a logger fails to start."""
        for logger in self._loggers:
            _wait_for(self._thread.submit(logger.begin, folder, config))

    def record(self, record: Record) -> None:
        """Pass a record to the thread; raise the error of an earlier record, if there is one."""
        if self._latest is not None and self._latest.done():
            _wait_for(self._latest)
        before, copy = self._latest, dict(record)

        def log() -> None:
            if before is not None:
                before.result()
            for logger in self._loggers:
                logger.record(copy)

        if self._loggers:
            self._latest = self._thread.submit(log)

    def finish(self) -> None:
        """Wait until everything is logged, and finish the loggers."""
        if self._latest is not None:
            _wait_for(self._latest)
        for logger in self._loggers:
            _wait_for(self._thread.submit(logger.finish))
        self._thread.shutdown()


def _wait_for(future: Future[None]) -> None:
    """Wait for a logger; raise its error as one line."""
    try:
        future.result()
    except FedsysError:
        raise
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        raise FedsysError(f"a logger failed ({type(error).__name__}: {text})") from error


class TensorBoard(Logger):
    """Writes TensorBoard event files to the run directory, metrics against rounds."""

    @override
    def begin(self, folder: Path, config: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    @override
    def record(self, record: Record) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, int(record["round"]))

    @override
    def finish(self) -> None:
        self._writer.close()


class WandB(Logger):
    """Logs to Weights & Biases (`pip install fedsys[wandb]`).

    Args:
        project: the name of the project.
        mode: "online", "offline" or "disabled".
    """

    package = "wandb"

    def __init__(self, project: str = "fedsys", mode: str = "online") -> None:
        check_types("wandb", type_hints(WandB.__init__), {"project": project, "mode": mode})
        modes = ("online", "offline", "disabled")
        require(mode in modes, "wandb", "mode", mode, " or ".join(modes))
        self._project, self._mode = project, mode

    @override
    def begin(self, folder: Path, config: dict[str, Any]) -> None:
        wandb = _optional("wandb")
        self._run = wandb.init(
            project=self._project, mode=self._mode, dir=str(folder), name=folder.name, config=config
        )

    @override
    def record(self, record: Record) -> None:
        self._run.log(scalars(record), step=int(record["step"]))

    @override
    def finish(self) -> None:
        self._run.finish()


class MLflow(Logger):
    """Logs to MLflow (`pip install fedsys[mlflow]`).

    Args:
        experiment: the name of the experiment.
        uri: the tracking server; a folder in the run directory by default.
    """

    package = "mlflow"

    def __init__(self, experiment: str = "fedsys", uri: str | None = None) -> None:
        given = {"experiment": experiment, "uri": uri}
        check_types("mlflow", type_hints(MLflow.__init__), given)
        self._experiment, self._uri = experiment, uri

    @override
    def begin(self, folder: Path, config: dict[str, Any]) -> None:
        self._mlflow = _optional("mlflow")
        self._mlflow.set_tracking_uri(self._uri or (folder / "mlflow").as_uri())
        self._mlflow.set_experiment(self._experiment)
        self._mlflow.start_run(run_name=folder.name)
        self._mlflow.log_params({key: str(value)[:500] for key, value in config.items()})

    @override
    def record(self, record: Record) -> None:
        self._mlflow.log_metrics(scalars(record), step=int(record["step"]))

    @override
    def finish(self) -> None:
        self._mlflow.end_run()


def scalars(record: Record) -> dict[str, float]:
    """Return the numbers of a record; that of client m is called NAME/client_m, for 64 at most."""
    found = {name: value for name, value in record.items() if not isinstance(value, list)}
    for name, values in client_metrics_of(record).items():
        for client, value in enumerate(values[:_MOST_CLIENTS]):
            if value is not None:
                found[f"{name}/client_{client}"] = value
    return found


def _require_package(logger: Logger) -> None:
    """Refuse a logger whose `package` is not installed, before the run writes anything."""
    package = getattr(logger, "package", None)
    if package is not None and importlib.util.find_spec(package) is None:
        raise _missing(package)


def _optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise _missing(name) from None


def _missing(name: str) -> InputError:
    return InputError(f"logger={name} needs {name}: pip install fedsys[{name}]")
