"""Read run directories, finished or interrupted, and report what cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsys.core.errors import InputError
from fedsys.core.metrics import Record
from fedsys.training import run_files as files
from fedsys.training.run_files import UnreadableError

_IGNORED_SETTINGS = (
    "seed", "run", "logger", "resume", "checkpoint", "evaluate_every", "objective",
)  # fmt: skip
"""Settings in which runs of the same configuration may differ."""
_FILES = (files.METRICS, files.SUMMARY, files.CONFIG)
_NOT_RUNS = {"checkpoints", "tensorboard", "mlflow", "wandb"}


@dataclass(frozen=True)
class Run:
    """The content of a run directory that a report uses."""

    folder: Path
    settings: dict[str, str]
    """Values by dotted name, without the seed and the location of the run."""
    seed: str
    records: list[Record]
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the run has finished."""
        return bool(self.summary)

    @property
    def final(self) -> Record:
        """The last record."""
        last: Record = self.summary.get("final") or (self.records[-1] if self.records else {})
        return last

    @property
    def compression(self) -> str:
        """The compression of the messages of the clients."""
        return self.settings.get("communicator.compression", "none")

    @property
    def choices(self) -> dict[str, str]:
        """The chosen option of each configuration group; class names if the run was interrupted."""
        if "choices" in self.summary:
            return dict(self.summary["choices"])
        return {
            group: name.rpartition(".")[2]
            for group in ("algorithm", "problem")
            if (name := self.settings.get(f"{group}._target_"))
        }


def read_run(folder: Path) -> tuple[Run | None, list[str]]:
    """Return a run (None without any readable record) and warnings about missing or bad files."""
    records, warnings = _records(folder / files.METRICS)
    summary, summary_warnings = files.read_summary(folder / files.SUMMARY)
    config, config_warnings = _settings(folder / files.CONFIG)
    warnings += summary_warnings + config_warnings
    if not records and "final" not in summary:
        warnings.append(f"{folder}: no metrics; the run is not shown")
        return None, warnings
    if not summary:
        last = f"{records[-1]['round']:.0f}"
        warnings.append(f"{folder}: no summary.json, the run is unfinished; shown to round {last}")
    elif not records:
        warnings.append(f"{folder}: no metrics.jsonl; only the last record is shown")
        records = [_in_floats(summary["final"])]
    return Run(folder, dict(_flat(config)), str(config.get("seed", "")), records, summary), warnings


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Return all runs in and below some folders, and all warnings; raise if there is no run."""
    runs: list[Run] = []
    warnings: list[str] = []
    paths = list(paths)
    for path in paths:
        folders = list(run_folders(path))
        if not folders:
            warnings.append(f"{path}: contains no run directory")
        for folder in folders:
            run, run_warnings = read_run(folder)
            warnings += run_warnings
            if run is not None:
                runs.append(run)
    if not runs:
        raise InputError(f"nothing to report: {'; '.join(warnings)}")
    return runs, warnings


def run_folders(path: Path) -> Iterator[Path]:
    """Yield the run directories in and below a folder, numbered ones in numerical order."""
    found = {
        Path(folder)
        for folder, folders, names in os.walk(path)
        if not {*folders, *names}.isdisjoint(_FILES)
    }
    ordered = sorted(found, key=lambda folder: [_by_number(part) for part in folder.parts])
    yield from (f for f in ordered if not _NOT_RUNS & set(f.relative_to(path).parts))


def _by_number(part: str) -> tuple[int, str]:
    """Return a sort key that puts the jobs of a sweep (0, 1, ..., 10) in numerical order."""
    return (int(part), "") if part.isdigit() else (-1, part)


def _records(path: Path) -> tuple[list[Record], list[str]]:
    """Return the records of a metrics.jsonl and a warning that lists its unreadable lines."""
    try:
        metrics = files.read_metrics(path)
    except UnreadableError as error:
        return [], [f"{error}; it is ignored"]
    records = [_in_floats(record) for record in metrics.records]
    lines = files.named_lines(metrics.unread)
    warning = (
        f"{path}: {lines} cannot be read; {'it is' if len(metrics.unread) == 1 else 'they are'}"
    )
    return records, [f"{warning} ignored"] if metrics.unread else []


def _in_floats(record: Record) -> Record:
    return {n: value if isinstance(value, list) else float(value) for n, value in record.items()}


def _settings(path: Path) -> tuple[dict[str, Any], list[str]]:
    try:
        config = files.read_settings(path)
    except UnreadableError as error:
        return {}, [f"{error}; its settings are unknown"]
    if config is None:
        return {}, [f"{path.parent}: no config.yaml; its settings are unknown"]
    return config, []


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield all settings except the ignored ones as (dotted name, text)."""
    for name, value in config.items():
        if prefix == "" and name in _IGNORED_SETTINGS:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif not (name in ("seed", "root", "download") and prefix.endswith("dataset.")):
            yield f"{prefix}{name}", str(value)
