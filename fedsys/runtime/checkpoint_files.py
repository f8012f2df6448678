"""A checkpoint on disk: a folder of safetensors files, one of each rank, and snapshot.json.

The tensors are written and read by torch.distributed.checkpoint, one entry per field and client, so
that whoever hosts a client later reads just its rows. snapshot.json has the checksum of every file,
and one of its own; nothing is parsed before its checksum fits, and neither format holds code.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsys.communication import Traffic
from fedsys.errors import InputError

_SNAPSHOT = "snapshot.json"
_COUNTS = {field.name for field in fields(Traffic)}


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint says besides the tensors."""

    step: int
    seconds: float
    traffic: Mapping[str, Any]


class DamagedCheckpointError(Exception):
    """What is on disk is not what was written."""


def file_name(rank: int) -> str:
    """The file of one rank."""
    return f"rank-{rank:05d}.safetensors"


def write_rows(folder: Path, rank: int, rows: dict[str, Tensor]) -> str:
    """Write the rows of one rank; returns the checksum of its file."""
    from torch.distributed import checkpoint

    aside = folder / f".rank-{rank:05d}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    writer = checkpoint.HuggingFaceStorageWriter(str(aside), save_distributed=True)
    try:
        with _quiet():
            checkpoint.save(rows, storage_writer=writer, no_dist=True)
    except checkpoint.CheckpointException as error:  # which is no Exception
        raise OSError(_reason(error)) from error
    (written,) = aside.glob("*.safetensors")
    target = folder / file_name(rank)
    written.rename(target)
    shutil.rmtree(aside)
    with target.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(partial: Path, target: Path, snapshot: Snapshot, checksums: Mapping[str, str]) -> None:
    """Give a folder in which all ranks have written its snapshot and its final name."""
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
    """Remove a checkpoint; what a crash leaves of it does not look like one."""
    going = folder.with_name(f".{folder.name}.going")
    shutil.rmtree(going, ignore_errors=True)
    folder.rename(going)
    shutil.rmtree(going)


def sealed(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the newest last; whether they are good is another question."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def verified(folder: Path) -> Snapshot:
    """The snapshot of a checkpoint, every byte of which is as it was written."""
    try:
        content = json.loads((folder / _SNAPSHOT).read_bytes())
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise DamagedCheckpointError(f"{_SNAPSHOT} was changed")
        checksums = content.pop("checksums")
        if sorted(checksums) != sorted(path.name for path in folder.glob("*.safetensors")):
            raise DamagedCheckpointError("files are missing or were added")
        for name, checksum in checksums.items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
                    raise DamagedCheckpointError(f"{name} was changed")
        return _snapshot(content)
    except OSError as error:
        raise DamagedCheckpointError(error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(f"{_SNAPSHOT} is not a snapshot") from error


def read_rows(folder: Path, rows: dict[str, Tensor]) -> None:
    """Fill the rows, of whichever ranks wrote them, in place."""
    from torch.distributed import checkpoint

    reader = checkpoint.HuggingFaceStorageReader(str(folder))
    try:
        with _quiet():
            checkpoint.load(rows, storage_reader=reader, no_dist=True)
    except (Exception, checkpoint.CheckpointException) as error:  # which is no Exception
        raise InputError(
            f"the checkpoint {folder} does not fit this run or is damaged ({_reason(error)}); "
            "give another run.name, or resume=false"
        ) from error


def _snapshot(content: dict[str, Any]) -> Snapshot:
    """Checked like any input: a checksum only tells that nothing changed by accident."""
    snapshot = Snapshot(**content)
    numbers = [snapshot.seconds, *snapshot.traffic.values()]
    if not (isinstance(snapshot.step, int) and {*snapshot.traffic} <= _COUNTS):
        raise TypeError
    if not all(isinstance(number, int | float) for number in numbers):
        raise TypeError
    return snapshot


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _flush(folder: Path) -> None:
    """Names, too, survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch.distributed.checkpoint has to say, stacks and all, is said in our errors."""
    before = logging.root.manager.disable  # it speaks through the root logger
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """The first failure inside an error of torch.distributed.checkpoint, without its stack."""
    failures = getattr(error, "failures", {})
    first = next((failure for failure, _ in failures.values()), error)
    return str(first).strip().partition("\n")[0]
