"""Run directories as they are found: whole or broken off; what cannot be read is named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedsys.errors import InputError

Record = dict[str, float]

_OF_NO_CONSEQUENCE = (
    "seed", "run", "logger", "resume", "checkpoint", "evaluate_every", "objective",
)  # fmt: skip
"""Settings that two runs of one configuration may differ in."""
_FILES = ("metrics.jsonl", "summary.json", "config.yaml")
_NOT_RUNS = {"checkpoints", "tensorboard", "mlflow", "wandb"}


@dataclass(frozen=True)
class Run:
    """What a report needs of a run directory."""

    folder: Path
    settings: dict[str, str]
    """By their dotted names, without the seed and where the run was kept."""
    seed: str
    records: list[Record]
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.summary)

    @property
    def final(self) -> Record:
        """The last record."""
        last: Record = self.summary.get("final") or (self.records[-1] if self.records else {})
        return last

    @property
    def choices(self) -> dict[str, str]:
        """Which file of each group was chosen; a run that broke off only knows its classes."""
        if "choices" in self.summary:
            return dict(self.summary["choices"])
        return {
            group: name.rpartition(".")[2]
            for group in ("algorithm", "problem")
            if (name := self.settings.get(f"{group}._target_"))
        }


def read_run(folder: Path) -> tuple[Run | None, list[str]]:
    """A run, or None where nothing is legible, and what is missing or broken, in words."""
    warnings: list[str] = []
    records, unread = _records(folder / "metrics.jsonl")
    summary = _json(folder / "summary.json", warnings)
    config = _yaml(folder / "config.yaml", warnings)
    if unread:
        lines = ", ".join(str(number) for number in unread[:5])
        warnings.append(f"{folder / 'metrics.jsonl'}: line {lines} cannot be read and is left out")
    if not records and not summary.get("final"):
        warnings.append(f"{folder}: no metrics, so there is nothing of it to show")
        return None, warnings
    if not summary:
        done = f"{records[-1].get('round', 0):.0f} rounds"
        warnings.append(f"{folder}: no summary.json, the run has not ended; shown up to {done}")
    elif not records:
        warnings.append(f"{folder}: no metrics.jsonl, only its last record is shown")
        records = [summary["final"]]
    return Run(folder, dict(_flat(config)), str(config.get("seed", "")), records, summary), warnings


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """All runs in and below some folders, and every warning; refused if there is none at all."""
    runs: list[Run] = []
    warnings: list[str] = []
    paths = list(paths)
    for path in paths:
        folders = list(run_folders(path))
        if not folders:
            warnings.append(f"{path}: no run directory in it")
        for folder in folders:
            run, said = read_run(folder)
            warnings += said
            if run is not None:
                runs.append(run)
    if not runs:
        raise InputError(f"nothing to report: {'; '.join(warnings)}")
    return runs, warnings


def run_folders(path: Path) -> Iterator[Path]:
    """The run directories among a folder and those below it."""
    found = {file.parent for name in _FILES for file in path.rglob(name)}
    numbers_last = sorted(found, key=lambda folder: [_by_number(part) for part in folder.parts])
    yield from (f for f in numbers_last if not _NOT_RUNS & set(f.relative_to(path).parts))


def _by_number(part: str) -> tuple[int, str]:
    """The jobs of a sweep are called 0, 1, ..., 10."""
    return (int(part), "") if part.isdigit() else (-1, part)


def _records(path: Path) -> tuple[list[Record], list[int]]:
    """The records of a metrics.jsonl and the numbers of the lines that hold none."""
    records: list[Record] = []
    unread: list[int] = []
    text = path.read_text(errors="replace") if path.is_file() else ""
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            record = {name: float(value) for name, value in json.loads(line).items()}
            records.append(record)
        except (ValueError, TypeError, AttributeError):
            unread.append(number)
    return records, unread


def _json(path: Path, warnings: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(errors="replace"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        warnings.append(f"{path} cannot be read and is left out")
        return {}
    return content


def _yaml(path: Path, warnings: list[str]) -> dict[str, Any]:
    from yaml import YAMLError

    if not path.is_file():
        warnings.append(f"{path.parent}: no config.yaml, so its settings are unknown")
        return {}
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
        assert isinstance(content, dict)
    except (YAMLError, OSError, ValueError, AssertionError):
        warnings.append(f"{path} cannot be read, so its settings are unknown")
        return {}
    return {str(name): value for name, value in content.items()}


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """All settings by their dotted names, but those of no consequence."""
    for name, value in config.items():
        if prefix == "" and name in _OF_NO_CONSEQUENCE:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif not (name in ("seed", "root", "download") and prefix.endswith("dataset.")):
            yield f"{prefix}{name}", str(value)
