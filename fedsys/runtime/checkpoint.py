"""Checkpoints of all clients' state, written while training goes on, readable by any ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from threading import Thread
from time import monotonic

import torch
from torch import Tensor

from fedsys.errors import InputError, LostRankError, require
from fedsys.problems import Site
from fedsys.runtime import checkpoint_files as files
from fedsys.runtime.agreement import Agreement
from fedsys.runtime.checkpoint_files import DamagedCheckpointError, Snapshot
from fedsys.runtime.world import World

__all__ = ["Checkpoints", "Snapshot", "check"]

_RIDER = "rider"
_PATIENCE = timedelta(minutes=10)


def check(every: int, keep: int, minutes: float) -> None:
    """Refuse settings that make no sense."""
    require(every >= 0, "checkpoint", "every", every, "0 or more rounds")
    require(minutes >= 0, "checkpoint", "minutes", minutes, "0 or more")
    require(keep >= 1, "checkpoint", "keep", keep, "at least 1")


class Checkpoints:
    """The checkpoints of one run.

    A rank copies its state and goes on; a thread of its own writes the copy and leaves the file's
    checksum in the store. The first rank's thread gathers them, seals the folder and removes old
    ones. A rank that comes to the next checkpoint waits for the last one.

    Args:
        folder: where they are.
        world: the ranks that write them together.
        every: rounds between two of them; 0 for the last one only.
        keep: how many are kept.
        resume: whether to start from the newest one that is good.
        minutes: write one after so long without any, too; 0 for never.
        warn: told of one that is damaged, on the first rank.
    """

    def __init__(
        self,
        folder: Path,
        world: World,
        every: int = 50,
        keep: int = 2,
        resume: bool = True,
        minutes: float = 0.0,
        warn: Callable[[str], None] = lambda line: None,
    ) -> None:
        check(every, keep, minutes)
        self._folder, self._world = folder, world
        self._every, self._keep, self._resume = every, keep, resume
        self._seconds, self._warn = 60 * minutes, warn
        self._saved = monotonic()
        # Several runs may share a store, one after another; no note of one is for the next.
        self._topic = f"checkpoint of meeting {world.meetings} in {folder}"
        self._saves = 0
        self._agreement = Agreement(world, self._topic)
        self._writing: Thread | None = None
        self._failure: str | None = None
        # A connection of its own: the thread waits at it.
        self._store = world.store.clone() if world.ranks > 1 else None

    def is_due(self, rounds: int) -> bool:
        """Whether one is written after this round; asked after every one."""
        if self._every > 0 and rounds % self._every == 0:
            return True
        late = self._seconds > 0 and monotonic() - self._saved > self._seconds
        return late and self._agreement.holds(rounds)

    def newest(self) -> Snapshot | None:
        """The checkpoint to go on from: the newest that is as it was written."""
        mine = self._world.together(self._choose)
        chosen: Snapshot | None = self._world.transport.all_gather_object(mine)[0]
        return chosen

    def save(
        self, snapshot: Snapshot, fields: dict[str, Tensor], rider: Tensor | None, site: Site
    ) -> None:
        """Begin to write a checkpoint, all ranks together, once the last one is written."""
        target = self._path(snapshot.step)
        partial = target.with_name(f".{target.name}.partial")
        self._world.together(lambda: self._make_room(partial))
        # Copies: the next step may give memory back, and averaged rows share theirs.
        rows = {
            name: row.detach().to("cpu", copy=True)
            for name, row in _by_client(fields, rider, site).items()
        }
        self._saved = monotonic()
        self._saves += 1
        self._agreement.begin_again()
        # With other ranks it may wait for one that is lost, which must not keep this one here.
        alone = self._world.ranks == 1
        job = (partial, target, snapshot, rows)
        self._writing = Thread(target=self._write, args=job, daemon=not alone)
        self._writing.start()

    def finish(self) -> None:
        """Wait until the last one is complete, on all ranks."""
        self._world.together(self._wait)

    def load(
        self, snapshot: Snapshot, fields: dict[str, Tensor], rider: Tensor | None, site: Site
    ) -> dict[str, Tensor]:
        """The fields of the hosted clients; the rider's rows are replaced in place."""
        new = {name: torch.empty_like(field) for name, field in fields.items()}
        rows = _by_client(new, rider, site)
        self._world.together(lambda: files.read_rows(self._path(snapshot.step), rows))
        return new

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09d}"

    def _choose(self) -> Snapshot | None:
        if self._world.rank != 0 or not self._resume:
            return None
        found = files.sealed(self._folder)
        for path in reversed(found):
            try:
                snapshot = files.verified(path)
                if self._path(snapshot.step) != path:
                    raise DamagedCheckpointError(f"it is of step {snapshot.step}")
                return snapshot
            except DamagedCheckpointError as damage:
                self._warn(f"the checkpoint {path} is damaged ({damage}); trying the one before it")
        if found:
            raise InputError(
                f"no checkpoint in {self._folder} is good; choose another run.name, or remove the "
                "run directory to start again"
            )
        return None

    def _make_room(self, partial: Path) -> None:
        self._wait()
        if self._world.rank == 0:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                for leftover in self._folder.glob(".step-*"):
                    shutil.rmtree(leftover)
                partial.mkdir()
            except OSError as error:
                raise InputError(f"cannot write a checkpoint: {error}") from error

    def _wait(self) -> None:
        deadline = monotonic() + self._world.timeout
        while self._writing is not None:
            self._writing.join(0.5 if self._world.ranks > 1 else None)
            if not self._writing.is_alive():
                self._writing = None
            elif monotonic() > deadline or self._world.roll_call.is_over:
                raise LostRankError("a rank did not write its part of a checkpoint")
        if self._failure is not None:
            raise InputError(f"cannot write a checkpoint: {self._failure}")

    def _write(
        self, partial: Path, target: Path, snapshot: Snapshot, rows: dict[str, Tensor]
    ) -> None:
        """What a thread does; what goes wrong is told by the next one who waits for it."""
        try:
            checksum = files.write_rows(partial, self._world.rank, rows)
        except Exception as error:
            checksum, self._failure = "", str(error) or type(error).__name__
        try:
            checksums = self._gather(checksum)
            if self._world.rank == 0 and all(checksums):
                names = map(files.file_name, range(self._world.ranks))
                files.seal(partial, target, snapshot, dict(zip(names, checksums, strict=True)))
                for old in files.sealed(self._folder)[: -self._keep]:
                    files.remove(old)
        except Exception as error:
            self._failure = self._failure or str(error).partition("\n")[0]

    def _gather(self, checksum: str) -> list[str]:
        """The checksums of all ranks, on the first one."""
        if self._store is None:
            return [checksum]
        part = f"{self._topic}, number {self._saves}, rank"
        keys = [f"{part} {rank}" for rank in range(self._world.ranks)]
        self._store.set(keys[self._world.rank], json.dumps(checksum))
        if self._world.rank != 0:
            return []
        try:
            self._store.wait(keys, _PATIENCE)
        except RuntimeError as error:
            raise LostRankError("a rank did not write its part") from error
        return [json.loads(self._store.get(key)) for key in keys]


def _by_client(fields: Mapping[str, Tensor], rider: Tensor | None, site: Site) -> dict[str, Tensor]:
    """One entry per field and hosted client; on loading these views are what is written to."""
    everything = dict(fields) if rider is None else {**fields, _RIDER: rider}
    return {
        f"{name}.{client}": rows[row]
        for name, rows in everything.items()
        for row, client in enumerate(site.hosted)
    }
