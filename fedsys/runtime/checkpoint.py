"""Checkpoints of all clients' state, readable at any number of ranks.

Each is a folder of safetensors files written through torch.distributed.checkpoint, with one entry
per field and client, so that whoever hosts a client later reads just its rows. Loading runs no code
from the files. A folder gets its final name only when it is complete.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsys.errors import InputError
from fedsys.problems import Site
from fedsys.runtime.world import World

_RIDER = "rider"


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint says besides the tensors."""

    step: int
    seconds: float
    traffic: Mapping[str, Any]
    memory: Mapping[str, int] = field(default_factory=dict)
    """The names of what the communicator remembers, and the length of its rows."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they are.
        world: the ranks that write them together.
        every: rounds between two of them; 0 for the last one only.
        keep: how many are kept.
        resume: whether to start from the newest one.
    """

    def __init__(
        self, folder: Path, world: World, every: int = 50, keep: int = 2, resume: bool = True
    ) -> None:
        self._folder, self._world = folder, world
        self._every, self._keep, self._resume = every, keep, resume

    def is_due(self, rounds: int) -> bool:
        """Whether one is written after this round."""
        return self._every > 0 and rounds % self._every == 0

    def newest(self) -> Snapshot | None:
        """The checkpoint to go on from."""
        found = self._complete() if self._resume else []
        shared = self._world.together(lambda: found[-1].name if found else "")
        if not shared:
            return None
        content = json.loads((self._folder / shared / "snapshot.json").read_text())
        return Snapshot(**content)

    def save(
        self, snapshot: Snapshot, fields: dict[str, Tensor], rider: Tensor | None, site: Site
    ) -> None:
        """Write a checkpoint, all ranks together."""
        target = self._path(snapshot.step)
        partial = target.with_name(f".{target.name}.partial")
        self._world.together(lambda: self._on_first_rank(lambda: _make_empty(partial)))
        # Averaged rows share their memory, which safetensors refuses to write.
        rows = {name: row.clone() for name, row in _by_client(fields, rider, site).items()}
        self._world.together(lambda: _store(partial, rows, distributed=self._world.ranks > 1))
        self._world.together(lambda: self._on_first_rank(lambda: self._seal(partial, snapshot)))

    def load(
        self, snapshot: Snapshot, fields: dict[str, Tensor], rider: Tensor | None, site: Site
    ) -> dict[str, Tensor]:
        """The fields of the hosted clients; the rider's rows are replaced in place."""
        new = {name: torch.empty_like(field) for name, field in fields.items()}
        path = self._path(snapshot.step)
        rows = _by_client(new, rider, site)
        self._world.together(lambda: _restore(path, rows, distributed=self._world.ranks > 1))
        return new

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09d}"

    def _complete(self) -> list[Path]:
        return sorted(p.parent for p in self._folder.glob("step-*/snapshot.json"))

    def _on_first_rank(self, work: Any) -> None:
        if self._world.rank == 0:
            try:
                work()
            except OSError as error:
                raise InputError(f"cannot write a checkpoint: {error}") from error

    def _seal(self, partial: Path, snapshot: Snapshot) -> None:
        (partial / "snapshot.json").write_text(json.dumps(asdict(snapshot)))
        target = self._path(snapshot.step)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        for old in self._complete()[: -self._keep]:
            shutil.rmtree(old)


def _make_empty(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def _by_client(fields: Mapping[str, Tensor], rider: Tensor | None, site: Site) -> dict[str, Tensor]:
    """One entry per field and hosted client; on loading these views are what is written to."""
    everything = dict(fields) if rider is None else {**fields, _RIDER: rider}
    return {
        f"{name}.{client}": rows[row]
        for name, rows in everything.items()
        for row, client in enumerate(site.hosted)
    }


def _store(folder: Path, rows: dict[str, Tensor], distributed: bool) -> None:
    from torch.distributed import checkpoint

    writer = checkpoint.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        with _quiet():
            checkpoint.save(rows, storage_writer=writer, no_dist=not distributed)
    except (OSError, checkpoint.CheckpointException) as error:
        raise InputError(f"cannot write a checkpoint to {folder}: {_reason(error)}") from error


def _restore(folder: Path, rows: dict[str, Tensor], distributed: bool) -> None:
    from torch.distributed import checkpoint

    reader = checkpoint.HuggingFaceStorageReader(str(folder))
    try:
        with _quiet():
            checkpoint.load(rows, storage_reader=reader, no_dist=not distributed)
    except (Exception, checkpoint.CheckpointException) as error:  # which is no Exception
        raise InputError(
            f"the checkpoint {folder} does not fit this run or is damaged ({_reason(error)}); "
            "give another run.name, or resume=false"
        ) from error


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
