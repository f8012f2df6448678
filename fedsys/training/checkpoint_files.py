"""The files of a checkpoint: a folder with one safetensors file per rank, and snapshot.json.

torch.distributed.checkpoint writes and reads the tensors, one entry per field and client, so that
the rank that hosts a client later reads only its rows. snapshot.json has the checksum of every
file and of itself. No tensor is read before all checksums match, and neither format can contain
code.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsys.core.errors import InputError
from fedsys.core.traffic import Traffic
from fedsys.training.best_record import Standing

_SNAPSHOT = "snapshot.json"
_COUNTS = {field.name for field in fields(Traffic)}
_SECONDS = {"seconds_waited"}


@dataclass(frozen=True)
class Snapshot:
    """The content of snapshot.json: everything but the tensors."""

    step: int
    seconds: float
    traffic: Mapping[str, Any]
    memory: Mapping[str, int] = field(default_factory=dict)
    """The names of the communicator's state, and the length of its rows."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Every setting that can change a result, by its dotted name (compared_settings.py)."""
    pending: Mapping[str, float] = field(default_factory=dict)
    """The record of this step without its metrics, if the run stopped during its evaluation."""
    calls: int = 0
    """The calls of a client's operators and gradients at a draw so far."""
    passes: int = 0
    """Those on all data."""
    best: Mapping[str, Any] = field(default_factory=dict)
    """The best record so far (best_record.py), if the run follows its records."""
    best_rows: Mapping[str, int] = field(default_factory=dict)
    """The names of the rows of that record's point, and their lengths."""


class DamagedCheckpointError(Exception):
    """The files are not as they were written."""


def file_name(rank: int) -> str:
    """Return the name of the file of one rank."""
    return f"rank-{rank:05d}.safetensors"


def write_rows(folder: Path, rank: int, rows: dict[str, Tensor]) -> str:
    """Write the rows of one rank; return the checksum of the file."""
    from torch.distributed import checkpoint

    own_folder = folder / f".rank-{rank:05d}"
    shutil.rmtree(own_folder, ignore_errors=True)
    own_folder.mkdir()
    writer = checkpoint.HuggingFaceStorageWriter(str(own_folder), save_distributed=True)
    try:
        with _quiet():
            checkpoint.save(rows, storage_writer=writer, no_dist=True)
    except checkpoint.CheckpointException as error:  # not a subclass of Exception
        raise OSError(_reason(error)) from error
    (written,) = own_folder.glob("*.safetensors")
    target = folder / file_name(rank)
    written.rename(target)
    shutil.rmtree(own_folder)
    with target.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(partial: Path, target: Path, snapshot: Snapshot, checksums: Mapping[str, str]) -> None:
    """Write the snapshot to a folder that has the files of all ranks, and rename it."""
    content = {**asdict(snapshot), "checksums": dict(checksums)}
    with (partial / _SNAPSHOT).open("w") as file:
        json.dump({**content, "checksum": _checksum(content)}, file)
        file.flush()
        os.fsync(file.fileno())
    _flush(partial)
    if target.exists():
        remove(target)
    partial.rename(target)
    _flush(target.parent)


def remove(folder: Path) -> None:
    """Remove a checkpoint; what a crash leaves of it is not taken for a checkpoint."""
    removed = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    folder.rename(removed)
    shutil.rmtree(removed)


def sealed(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest last; they may be damaged."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def verified(folder: Path) -> Snapshot:
    """Return the snapshot of a checkpoint after checking every byte of it."""
    try:
        if not stat.S_ISREG((folder / _SNAPSHOT).lstat().st_mode):
            raise DamagedCheckpointError(f"{_SNAPSHOT} is not a regular file")
        content = json.loads((folder / _SNAPSHOT).read_bytes())
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise DamagedCheckpointError(f"{_SNAPSHOT} was changed")
        checksums = content.pop("checksums")
        if sorted(checksums) != sorted(path.name for path in folder.glob("*.safetensors")):
            raise DamagedCheckpointError("files are missing or were added")
        size = 0
        for name, checksum in checksums.items():
            if not stat.S_ISREG((folder / name).lstat().st_mode):
                raise DamagedCheckpointError(f"{name} is not a regular file")
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
                    raise DamagedCheckpointError(f"{name} was changed")
                size += file.tell()
        return parse_snapshot(content, size)
    except OSError as error:
        raise DamagedCheckpointError(error.strerror or str(error)) from error
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as error:
        raise DamagedCheckpointError(f"{_SNAPSHOT} is not a snapshot") from error


def read_rows(folder: Path, rows: dict[str, Tensor]) -> None:
    """Read rows in place, whichever ranks wrote them."""
    from torch.distributed import checkpoint

    reader = checkpoint.HuggingFaceStorageReader(str(folder))
    try:
        with _quiet():
            checkpoint.load(rows, storage_reader=reader, no_dist=True)
    except (Exception, checkpoint.CheckpointException) as error:  # not a subclass of Exception
        raise InputError(
            f"the checkpoint {folder} does not fit this run or is damaged ({_reason(error)}); "
            "choose another run directory, or remove this one to start again"
        ) from error


def parse_snapshot(content: dict[str, Any], size: int = 2**40) -> Snapshot:
    """Return a snapshot; refuse values out of range.

    A checksum only shows that nothing changed by accident.

    Args:
        content: the JSON object, without checksums.
        size: the size of all files in bytes, which no row of the communicator's state can exceed.
    """
    snapshot = Snapshot(**content)
    traffic, memory = snapshot.traffic, snapshot.memory
    parts = traffic, memory, snapshot.settings, snapshot.pending, snapshot.best, snapshot.best_rows
    if not all(isinstance(one, dict) for one in parts):
        raise TypeError
    if snapshot.best:
        Standing.parse(snapshot.best)
    lengths = [*memory.values(), *snapshot.best_rows.values()]
    counts = [
        snapshot.step,
        snapshot.calls,
        snapshot.passes,
        *(v for n, v in traffic.items() if n not in _SECONDS),
    ]
    seconds = [snapshot.seconds, *(v for n, v in traffic.items() if n in _SECONDS)]
    good = (
        {*traffic} <= _COUNTS
        and all(_is_count(value) for value in counts)
        and traffic.get("rounds", 0) <= snapshot.step
        and all(_is_duration(value) for value in seconds)
        and all(_is_count(value) and 0 < value <= size for value in lengths)
        and all(_is_number(value) for value in snapshot.pending.values())
    )
    if not good:
        raise TypeError
    return snapshot


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_duration(value: object) -> bool:
    return _is_number(value) and 0 <= value < 1e12  # type: ignore[operator]


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _flush(folder: Path) -> None:
    """Flush the names in a folder to disk, so that they survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch.distributed.checkpoint, which logs stacks; our errors give the reason."""
    before = logging.root.manager.disable  # it uses the root logger
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """Return the first failure in an error of torch.distributed.checkpoint, without its stack."""
    failures = getattr(error, "failures", {})
    first = next((failure for failure, _ in failures.values()), error)
    return str(first).strip().partition("\n")[0]
