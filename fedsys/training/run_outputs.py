"""What a run writes and shows: its run directory, its loggers and the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsys.core.metrics import Record
from fedsys.training.console import Display, show_finished
from fedsys.training.loggers import BackgroundLogger
from fedsys.training.model_file import MODEL_FILE, model_note
from fedsys.training.option_names import OptionNames
from fedsys.training.partition_files import client_split_of, plot_client_split, save_client_split
from fedsys.training.result import Result
from fedsys.training.run_directory import RunDirectory
from fedsys.training.runner import Runner
from fedsys.training.start import seconds_since_start, title
from fedsys.training.summary import summary_of


@dataclass(frozen=True)
class RunAbout:
    """What is run.

    Args:
        config: the settings without secrets.
        choices: the chosen option of each group of settings.
        backend: the backend of torch.distributed.
        startup: returns the seconds since the start of the run, before its first step.
    """

    config: dict[str, Any]
    choices: Mapping[str, str]
    backend: str
    startup: Callable[[], float] = seconds_since_start


class RunOutputs:
    """The outputs of a run; only the first rank has them.

    Args:
        runner: the prepared runner.
        directory: the run directory, if the run has one.
        loggers: the loggers that were chosen.
        about: what is run.
        shows: whether the console shows the run.
        options: what messages call the options.
    """

    def __init__(
        self,
        runner: Runner,
        directory: RunDirectory | None,
        loggers: BackgroundLogger,
        about: RunAbout,
        shows: bool,
        options: OptionNames,
    ) -> None:
        self._runner, self._directory, self._loggers = runner, directory, loggers
        self._about, self._shows, self._options = about, shows, options
        found = client_split_of(runner.oracle)
        self._note = "" if found is None else found.note
        # Data that clients own is not described.
        self._client_split = None if found is None or found.is_owned else found
        self._display: Display | None = None
        self._is_open = False

    def begin(self, step: int, is_recorded: bool) -> None:
        """Open the outputs before the first step; read the records of earlier steps.

        Args:
            step: the step to start from.
            is_recorded: whether the record of that step is complete.
        """
        self._startup = self._about.startup()
        if self._directory is not None:
            self._open(self._directory, step, is_recorded)
        heading = self._title()
        if step:
            heading += f"\ncontinued from step {step}"
        plan = self._runner.plan
        unit, total = ("step", plan.steps) if plan.steps else ("round", plan.rounds)
        if self._shows:
            self._display = Display(heading, unit, total or 0, self._compression)
        self._is_open = True

    def _open(self, directory: RunDirectory, step: int, is_recorded: bool) -> None:
        config = self._about.config
        self._runner.records.extend(directory.begin(config, step, is_recorded))
        if self._client_split is not None:
            with directory.writing():
                save_client_split(self._client_split, directory.path)
        directory.note("data.json", self._runner.description())
        directory.note(MODEL_FILE, model_note(self._runner.oracle, config))
        self._loggers.begin(directory.path, config)

    def record(self, record: Record) -> None:
        """Write, log and show one record."""
        if not self._is_open:
            return
        if self._directory is not None:
            self._directory.record(record)
            self._loggers.record(record)
        if self._display is not None:
            self._display.record(record)

    def finish(self, result: Result, waited: list[float], dropped: Counter[int]) -> None:
        """Write and show the results.

        Args:
            result: what the run returned.
            waited: the seconds that each rank waited for the others.
            dropped: how often each client was dropped because of a non-finite value.
        """
        placement, choices = self._runner.site.placement, self._about.choices
        summary = summary_of(result, placement, choices, self._startup, waited, dropped)
        files: dict[str, Path] = {}
        if self._directory is not None:
            files = self._write(self._directory, result, summary)
        if self._display is not None:
            self._display.finish(summary, files, (result.report or {}).get("remarks", ()))

    def show_finished(self, summary: dict[str, Any]) -> None:
        """Show the results of a run that was finished by an earlier start."""
        if self._directory is None or not self._shows:
            return
        files = _shown_files(self._directory.path)
        show_finished(self._title(), summary, files, self._compression, self._options)

    def restore_terminal(self) -> None:
        """Stop the progress bar, however the run ended."""
        if self._display is not None:
            self._display.abandon()

    def _write(
        self, directory: RunDirectory, result: Result, summary: dict[str, Any]
    ) -> dict[str, Path]:
        """Write the results; return the paths to show."""
        from fedsys.training.curves import plot

        path = directory.path
        directory.finish(summary, result.variables)
        report = dict(result.report or {})
        directory.note("cross_site.json", report.pop("cross_site", None))
        directory.note("report.json", report or None)
        files = _shown_files(path)
        with directory.writing():
            plot(result.records, files["picture"], f"{path.name}")
            if self._client_split is not None:
                plot_client_split(self._client_split, path)
        self._loggers.finish()
        return files

    def _title(self) -> str:
        site = self._runner.site
        about = self._about
        return title(about.choices, site.placement, about.backend, site.device, self._note)

    @property
    def _compression(self) -> str:
        return str((self._about.config.get("communicator") or {}).get("compression", "none"))


def _shown_files(path: Path) -> dict[str, Path]:
    return {"results": path, "picture": path / "curves.png"}
