"""What a run writes and shows: its run directory, its loggers and the console."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedsys.core.metrics import Record
from fedsys.training.console import Display, show_finished
from fedsys.training.loggers import BackgroundLogger
from fedsys.training.model_file import MODEL_FILE, model_note
from fedsys.training.partition_files import client_split_of, plot_client_split, save_client_split
from fedsys.training.result import Result
from fedsys.training.run_directory import RunDirectory
from fedsys.training.run_options import chosen_options
from fedsys.training.runner import Runner
from fedsys.training.start import seconds_since_start, title
from fedsys.training.summary import summary_of


class RunOutputs:
    """The outputs of a run; only the first rank has them.

    Args:
        runner: the prepared runner.
        directory: the run directory.
        loggers: the loggers that were chosen.
        config: the configuration without secrets.
        backend: the backend of torch.distributed, for the title.
    """

    def __init__(
        self,
        runner: Runner,
        directory: RunDirectory,
        loggers: BackgroundLogger,
        config: dict[str, Any],
        backend: str,
    ) -> None:
        self._runner, self._directory, self._loggers = runner, directory, loggers
        self._config, self._backend = config, backend
        self._client_split = client_split_of(runner.oracle)
        self._display: Display | None = None

    def begin(self, step: int, is_recorded: bool) -> None:
        """Open the outputs before the first step; read the records of earlier steps.

        Args:
            step: the step to start from.
            is_recorded: whether the record of that step is complete.
        """
        self._startup = seconds_since_start()
        self._runner.records.extend(self._directory.begin(self._config, step, is_recorded))
        if self._has_partition:
            assert self._client_split is not None
            with self._directory.writing():
                save_client_split(self._client_split, self._directory.path)
        self._directory.note("data.json", self._runner.description())
        self._directory.note(MODEL_FILE, model_note(self._runner.oracle, self._config))
        self._loggers.begin(self._directory.path, self._config)
        heading = self._title()
        if step:
            heading += f"\ncontinued from step {step}"
        plan = self._runner.plan
        unit, total = ("step", plan.steps) if plan.steps else ("round", plan.rounds)
        self._display = Display(heading, unit, total or 0, self._compression)

    def record(self, record: Record) -> None:
        """Write, log and show one record."""
        if self._display is not None:
            self._directory.record(record)
            self._loggers.record(record)
            self._display.record(record)

    def finish(self, result: Result, waited: list[float], dropped: Counter[int]) -> None:
        """Write and show the results.

        Args:
            result: what the run returned.
            waited: the seconds that each rank waited for the others.
            dropped: how often each client was dropped because of a non-finite value.
        """
        from fedsys.training.curves import plot

        path = self._directory.path
        summary = self._summary(result, waited, dropped)
        self._directory.finish(summary, result.variables)
        report = dict(result.report or {})
        self._directory.note("cross_site.json", report.pop("cross_site", None))
        self._directory.note("report.json", report or None)
        picture = path / "curves.png"
        with self._directory.writing():
            plot(result.records, picture, f"{path.name}")
            if self._has_partition:
                assert self._client_split is not None
                plot_client_split(self._client_split, path)
        self._loggers.finish()
        assert self._display is not None
        files = {"results": path, "picture": picture}
        self._display.finish(summary, files, report.get("remarks", ()))

    def show_finished(self, summary: dict[str, Any]) -> None:
        """Show the results of a run that was finished by an earlier start."""
        path = self._directory.path
        files = {"results": path, "picture": path / "curves.png"}
        show_finished(self._title(), summary, files, self._compression)

    def restore_terminal(self) -> None:
        """Stop the progress bar, however the run ended."""
        if self._display is not None:
            self._display.abandon()

    def _summary(
        self, result: Result, waited: list[float], dropped: Counter[int]
    ) -> dict[str, Any]:
        placement = self._runner.site.placement
        return summary_of(result, placement, chosen_options(), self._startup, waited, dropped)

    def _title(self) -> str:
        site = self._runner.site
        note = "" if self._client_split is None else self._client_split.note
        return title(chosen_options(), site.placement, self._backend, site.device, note)

    @property
    def _has_partition(self) -> bool:
        """Whether a data set was partitioned; data that clients own is not described."""
        return self._client_split is not None and not self._client_split.is_owned

    @property
    def _compression(self) -> str:
        return str((self._config.get("communicator") or {}).get("compression", "none"))
