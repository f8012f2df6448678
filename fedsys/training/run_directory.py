"""The run directory: the one folder with everything that a run writes."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from fedsys.core.errors import InputError, StorageError
from fedsys.core.metrics import Record
from fedsys.training import run_files as files
from fedsys.training.compared_settings import compared_settings, differences, refusal
from fedsys.training.option_names import COMMAND_LINE, OptionNames
from fedsys.training.run_files import UnreadableError
from fedsys.training.run_lock import RunLock

_FILES_OF_A_RUN = (files.CONFIG, files.METRICS, files.SUMMARY, files.FINAL)


def new_run_timestamp() -> str:
    """Return the time as a name; jobs of the same second get different names."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def run_timestamp() -> str:
    """Return the time at which this job was started; restarted ranks get the same time."""
    return os.environ.get("FEDSYS_RUN_TIMESTAMP") or new_run_timestamp()


class RunDirectory:
    """The folder of a run.

    It has config.yaml, metrics.jsonl, summary.json, final.safetensors, the figures and
    checkpoints/. Problems that describe their data have data.json, those with a report
    report.json.

    Only the first rank writes to it, except for checkpoints. Nothing but the lock is written before
    `begin`, so a run that is refused leaves the folder unchanged.

    Args:
        path: the folder.
        warn: called with a line about each file that cannot be read.
        options: what messages call the options.
    """

    def __init__(
        self,
        path: Path,
        warn: Callable[[str], None] = lambda line: None,
        options: OptionNames = COMMAND_LINE,
    ) -> None:
        self.path, self._warn, self._options = path, warn, options
        self._metrics: IO[str] | None = None
        self._lock = RunLock(path, warn, options)
        self._has_records = False

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / files.CHECKPOINTS

    def open(self, config: Mapping[str, Any], resume: bool, patience: float = 0.0) -> bool:
        """Create or reopen the folder; refuse to overwrite or to mix up another run.

        Args:
            config: the configuration without secrets.
            resume: whether a run in the folder may be continued.
            patience: the seconds to wait for another process to release the lock: the run that
                this one continues may have been killed and not have ended yet.

        Returns:
            Whether config.yaml was compared with `config`. If it cannot be read, the settings in
            the checkpoint have to be compared instead.
        """
        try:
            self._lock.acquire(patience)
        except OSError as error:
            what = f"cannot write to the run directory {self.path}"
            raise StorageError.of(error, what, self._other_place) from error
        return self._compare_with_earlier(config, resume)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Report a full disk, or a folder that was removed, in one line."""
        try:
            yield
        except OSError as error:
            if not self.path.is_dir():
                raise self._removed(self.path) from error
            raise StorageError(
                f"cannot write to the run directory {self.path}: {error.strerror or error}; "
                f"{self._other_place}"
            ) from error

    def finished(
        self, is_over: Callable[[int, int], bool], patience: int | None = None
    ) -> dict[str, Any] | None:
        """Return the summary of a finished run, None if there are iterations left.

        Args:
            is_over: whether a run of so many steps and rounds has reached its end.
            patience: the records without improvement after which the run stops early.
        """
        summary, problems = files.read_summary(self.path / files.SUMMARY)
        for line in problems:
            self._warn(line)
        with suppress(ValueError):
            last = files.record_of(summary.get("final"))
            has_variables = (self.path / files.FINAL).is_file()
            ends = is_over(int(last["step"]), int(last["round"]))
            if has_variables and (ends or files.stopped_early(summary, patience)):
                return summary
        return None

    def begin(self, config: Mapping[str, Any], step: int, is_recorded: bool = True) -> list[Record]:
        """Write config.yaml and open metrics.jsonl to continue after `step`.

        A file of an earlier run that cannot be read, or only in part, is renamed and reported.

        Args:
            config: the configuration without secrets.
            step: the step to continue from.
            is_recorded: whether the record of `step` is complete; otherwise it is written again.

        Returns:
            The earlier records up to `step`.
        """
        with self.writing():
            metrics = self._read_earlier_metrics()
            for name in (files.CONFIG, files.SUMMARY):
                self._rename_if_damaged(self.path / name)
            write(self.path / files.CONFIG, _yaml(config))
            if step == 0 and any(r["step"] > 0 for r in metrics.records):
                self._warn(f"{self.path} has no checkpoint; the run starts from step 0 again")
            last = step if is_recorded else step - 1
            kept = [i for i, r in enumerate(metrics.records) if step and r["step"] <= last]
            lines = b"".join(metrics.lines[i] + b"\n" for i in kept).decode()
            write(self.path / files.METRICS, lines)
            self._metrics = (self.path / files.METRICS).open("a")
        return [metrics.records[i] for i in kept]

    def read_metrics(self) -> files.Metrics:
        """Return the records; a file that cannot be read is reported and has none."""
        try:
            return files.read_metrics(self.path / files.METRICS)
        except UnreadableError as error:
            self._warn(f"{error}; it is ignored")
            return files.Metrics([], [], [], False)

    def record(self, record: Record) -> None:
        """Append a line to metrics.jsonl."""
        assert self._metrics is not None
        with self.writing():
            self._metrics.write(json.dumps(record, default=float) + "\n")
            self._metrics.flush()
        self._has_records = True
        path = self.path / files.METRICS
        try:
            is_there = os.path.samestat(os.fstat(self._metrics.fileno()), path.stat())
        except OSError:
            is_there = False
        if not is_there:
            raise self._removed(path if self.path.is_dir() else self.path)

    def note(self, name: str, content: Mapping[str, Any] | None) -> None:
        """Write a JSON file, unless `content` is None."""
        if content is not None:
            with self.writing():
                write(self.path / name, json.dumps(content, indent=2) + "\n")

    def finish(self, summary: Mapping[str, Any], variables: Mapping[str, Tensor]) -> None:
        """Write the final variables and the summary."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        rows = {n: v.detach().cpu().contiguous().clone() for n, v in variables.items()}
        partial = self.path / f".{files.FINAL}.partial"
        with self.writing():
            partial.unlink(missing_ok=True)
            partial.touch()
            mode = partial.stat().st_mode  # follows the umask; safetensors sets its own mode
            try:
                save_file(rows, partial)
            except SafetensorError as error:  # not a subclass of OSError
                raise OSError(str(error)) from error
            partial.chmod(mode)
            partial.rename(self.path / files.FINAL)
            text = json.dumps(summary, indent=2, default=str)
            write(self.path / files.SUMMARY, f"{text}\n")

    def forget(self) -> None:
        """Remove everything that a run wrote that is refused before its first record."""
        if self._has_records or not self._lock.is_held:
            return
        with suppress(OSError):
            for entry in self.path.iterdir() if self._lock.found_empty else ():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self._lock.remove_created()

    def close(self) -> None:
        """Close the files and release the lock."""
        if self._metrics is not None:
            with suppress(OSError):  # a full disk was reported when the record was written
                self._metrics.close()
        self._lock.release()

    def _compare_with_earlier(self, config: Mapping[str, Any], resume: bool) -> bool:
        found_files = [name for name in _FILES_OF_A_RUN if os.path.lexists(self.path / name)]
        if os.path.lexists(self.checkpoints) and not self.checkpoints.is_dir():
            raise InputError(f"{self.checkpoints} is not a folder; {self._start_again}")
        has_checkpoints = any(self.checkpoints.glob("step-*"))
        if not found_files and not has_checkpoints:
            return False
        if not resume:
            raise InputError(
                f"{self.path} already holds a run; choose another {self._options.directory}, or "
                f"{self._options.resume} to continue it"
            )
        path = self.path / files.CONFIG
        problem = f"{path} is missing"
        try:
            before = files.read_settings(path)
        except UnreadableError as error:
            before, problem = None, str(error)
        if before is not None:
            found = differences(compared_settings(before), compared_settings(config))
            if found:
                raise InputError(refusal(self.path, found, self._options))
            return True
        if not has_checkpoints:
            raise InputError(
                f"{problem}, and no checkpoint says which settings {self.path} was run with; "
                f"{self._start_again}"
            )
        if not os.path.lexists(path):
            self._warn(f"{problem}; the settings are compared with those in the checkpoint")
        return False  # `begin` reports a file that cannot be read

    @property
    def _other_place(self) -> str:
        folder = self._options.folder
        return f"free some space and start the run again, or choose another folder by {folder}"

    @property
    def _start_again(self) -> str:
        other = self._options.directory
        return f"choose another {other}, or remove the run directory to start again"

    def _read_earlier_metrics(self) -> files.Metrics:
        path = self.path / files.METRICS
        try:
            metrics = files.read_metrics(path)
        except UnreadableError as error:
            kept = files.keep_damaged(path)
            self._warn(f"{error}; it is kept as {kept.name}")
            return files.Metrics([], [], [], False)
        if lost := metrics.lost():
            kept = files.keep_damaged(path)
            self._warn(
                f"{path}: {files.named_lines(lost)} cannot be read; the file is kept as {kept.name}"
            )
        return metrics

    def _rename_if_damaged(self, path: Path) -> None:
        try:
            files.read_settings(path) if path.suffix == ".yaml" else files.read_object(path)
        except UnreadableError as error:
            self._warn(f"{error}; it is kept as {files.keep_damaged(path).name}")

    def _removed(self, path: Path) -> StorageError:
        return StorageError(
            f"{path} was removed while the run was writing to it; start the run again, and leave "
            f"{self.path} alone until it ends"
        )


def _yaml(config: Mapping[str, Any]) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(config)))


def write(path: Path, text: str) -> None:
    """Replace a file atomically: a reader sees the old content or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
