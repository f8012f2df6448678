"""The one folder that holds all a run leaves behind."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

from torch import Tensor

from fedsys.errors import InputError

Record = dict[str, float]


def moment() -> str:
    """A name that two jobs of the same second do not share."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def began() -> str:
    """The moment of this job's start, the same for ranks that the launcher starts again."""
    return os.environ.get("FEDSYS_MOMENT") or moment()


class RunDirectory:
    """config.yaml, metrics.jsonl, summary.json, final.safetensors, the pictures and checkpoints/.

    Problems with more to tell have data.json and report.json too.

    Only the first rank writes here, besides the checkpoints.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics: IO[str] | None = None
        self._lock: IO[str] | None = None

    @property
    def checkpoints(self) -> Path:
        """Where the state of all clients is kept."""
        return self.path / "checkpoints"

    def open(self, config: Mapping[str, Any], resume: bool, patience: float = 0.0) -> None:
        """Make or reopen the folder, and refuse what would destroy another run.

        Who holds the lock has so many seconds to let go: the rank that this one replaces, after a
        restart, may not be gone yet.
        """
        with self.writing():
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
        deadline = monotonic() + patience
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if monotonic() >= deadline:
                    raise InputError(
                        f"another run is writing to {self.path}; choose another run.name or run.dir"
                    ) from None
                sleep(0.2)
        self._compare_with_earlier(config, resume)
        from omegaconf import OmegaConf

        with self.writing():
            write(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(config))))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A full disk or a folder that is read-only gets an answer."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot write to the run directory {self.path}: {error.strerror or error}; "
                "make room and start it again, or choose another with run.dir or run.root"
            ) from error

    def begin_metrics(self, step: int) -> list[Record]:
        """Open metrics.jsonl to go on after `step`; returns the records up to there."""
        path = self.path / "metrics.jsonl"
        records = [r for r in read_records(path) if r["step"] <= step] if step else []
        with self.writing():
            write(path, "".join(json.dumps(r) + "\n" for r in records))
            self._metrics = path.open("a")
        return records

    def record(self, record: Record) -> None:
        """Append a line to metrics.jsonl."""
        assert self._metrics is not None
        with self.writing():
            self._metrics.write(json.dumps(record) + "\n")
            self._metrics.flush()

    def note(self, name: str, content: Mapping[str, Any] | None) -> None:
        """Write a JSON file, if there is something to write."""
        if content is not None:
            with self.writing():
                write(self.path / name, json.dumps(content, indent=2) + "\n")

    def finish(self, summary: Mapping[str, Any], variables: Mapping[str, Tensor]) -> None:
        """Write the results."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        rows = {n: v.detach().cpu().contiguous().clone() for n, v in variables.items()}
        partial = self.path / ".final.safetensors.partial"
        with self.writing():
            try:
                save_file(rows, partial)
            except SafetensorError as error:  # which is no OSError
                raise OSError(str(error)) from error
            partial.chmod(0o644)  # safetensors keeps its files from everybody else
            partial.rename(self.path / "final.safetensors")
            write(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def close(self) -> None:
        """Let go of the folder."""
        for file in (self._metrics, self._lock):
            if file is not None:
                with suppress(OSError):  # what a full disk did not take was told before
                    file.close()

    def _compare_with_earlier(self, config: Mapping[str, Any], resume: bool) -> None:
        earlier = self.path / "config.yaml"
        if not earlier.exists():
            return
        if not resume:
            raise InputError(
                f"{self.path} already holds a run; choose another run.name, or resume=true to "
                "continue it"
            )
        from omegaconf import OmegaConf

        before = OmegaConf.to_container(OmegaConf.load(earlier))
        assert isinstance(before, dict)
        for key in ("algorithm", "problem", "clients", "seed", "dtype"):
            if before.get(key) != config.get(key):
                raise InputError(
                    f"{self.path} was run with {key}={before.get(key)}, now it is "
                    f"{config.get(key)}; choose another run.name"
                )


def read_records(path: Path) -> list[Record]:
    """The records of a metrics.jsonl; a last line cut by a crash is left out."""
    records: list[Record] = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return records


def write(path: Path, text: str) -> None:
    """Replace a file at once: a reader sees the old or the new, never half of it."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
