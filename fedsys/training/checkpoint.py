"""Checkpoints of all clients: written in the background, readable by any number of ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from threading import Thread
from time import monotonic

import torch
from torch import Tensor

from fedsys.communication.values import optional
from fedsys.core.errors import FedsysError, InputError, LostRankError, StorageError, require
from fedsys.core.site import Site
from fedsys.distributed.agreement import Agreement
from fedsys.distributed.world import World
from fedsys.training import checkpoint_files as files
from fedsys.training.checkpoint_files import DamagedCheckpointError, Snapshot
from fedsys.training.compared_settings import Settings, differences, refusal
from fedsys.training.option_names import COMMAND_LINE, OptionNames

__all__ = ["Checkpoints", "Snapshot", "check"]

_BUFFERS = "synchronised_buffers"
_LONGEST_WAIT_FOR_RANKS = timedelta(minutes=10)


def check(every: int, keep: int, minutes: float) -> None:
    """Refuse settings that are out of range."""
    require(every >= 0, "checkpoint", "every", every, "0 or more rounds")
    require(minutes >= 0, "checkpoint", "minutes", minutes, "0 or more")
    require(keep >= 1, "checkpoint", "keep", keep, "at least 1")


class Checkpoints:
    """The checkpoints of one run.

    Each rank copies its state and continues to train. A background thread writes the copy to a file
    and puts the checksum of the file into the store. The thread of the first rank collects the
    checksums, seals the folder and removes old checkpoints. Before a rank saves the next
    checkpoint, it waits until the previous one is written.

    Args:
        folder: the folder of the checkpoints.
        world: the ranks that write them together.
        every: the number of rounds between two checkpoints; 0 for the last one only.
        keep: the number of checkpoints that are kept.
        resume: whether to start from the newest checkpoint that is not damaged.
        minutes: write a checkpoint after so many minutes without one as well; 0 for never.
        warn: called with a line about each damaged checkpoint, on the first rank.
        settings: the settings that can change a result. They are stored in each checkpoint, and a
            checkpoint with other settings is refused. None: nothing is compared.
        compared: whether the settings were already compared with the config.yaml of the run.
        options: what messages call the options.
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
        settings: Settings | None = None,
        compared: bool = True,
        options: OptionNames = COMMAND_LINE,
    ) -> None:
        check(every, keep, minutes)
        self._folder, self._world = folder, world
        self._every, self._keep, self._resume = every, keep, resume
        self._seconds, self._warn = 60 * minutes, warn
        self._settings, self._compared, self._options = settings, compared, options
        self._newest: Path | None = None
        """The last checkpoint that was found or written."""
        self._saved = monotonic()
        # Consecutive runs may share a store; the keys of one must not be read by the next.
        self._topic = f"checkpoint of meeting {world.meetings} in {folder}"
        self._saves = 0
        self._agreement = Agreement(world, self._topic)
        self._writing: Thread | None = None
        self._failure: FedsysError | None = None
        # The background thread needs its own connection, because it blocks while it waits.
        self._store = world.store.clone() if world.ranks > 1 else None

    def is_due(self, rounds: int) -> bool:
        """Return whether a checkpoint is written after this round; called after every round."""
        if self._every > 0 and rounds % self._every == 0:
            return True
        late = self._seconds > 0 and monotonic() - self._saved > self._seconds
        return late and self._agreement.holds(rounds)

    def newest(self) -> Snapshot | None:
        """Return the newest checkpoint that is not damaged, to resume from."""
        mine = self._world.on_all_ranks(self._choose)
        content = None if mine is None else asdict(mine)
        found = self._world.transport.all_gather_values(content, optional(files.parse_snapshot))
        return found[0]

    def save(
        self,
        snapshot: Snapshot,
        fields: dict[str, Tensor],
        synchronised_buffers: Tensor | None,
        site: Site,
    ) -> None:
        """Start to write a checkpoint on all ranks, after the previous one is written."""
        if self._settings is not None:
            snapshot = replace(snapshot, settings=self._settings)
        target = self._path(snapshot.step)
        partial = target.with_name(f".{target.name}.partial")
        self._world.on_all_ranks(lambda: self._create_folder(partial))
        # Copies, because the next step may reuse the memory, and averaged rows share theirs.
        rows = {
            name: row.detach().to("cpu", copy=True)
            for name, row in _by_client(fields, synchronised_buffers, site).items()
        }
        self._saved = monotonic()
        self._saves += 1
        self._agreement.begin_again()
        # With several ranks the thread may wait for a lost one, and must not block the exit.
        alone = self._world.ranks == 1
        job = (partial, target, snapshot, rows)
        self._writing = Thread(target=self._write, args=job, daemon=not alone)
        self._writing.start()

    def finish(self) -> None:
        """Wait until the last checkpoint is written, on all ranks."""
        self._world.on_all_ranks(self._wait_and_check)

    def settle(self) -> None:
        """Wait for the last checkpoint of a single process, however its run ended."""
        if self._writing is not None and self._world.ranks == 1:
            self._writing.join()

    def load(
        self,
        snapshot: Snapshot,
        fields: dict[str, Tensor],
        synchronised_buffers: Tensor | None,
        site: Site,
    ) -> dict[str, Tensor]:
        """Return the fields of the hosted clients; buffers are overwritten in place."""
        new = {name: torch.empty_like(field) for name, field in fields.items()}
        rows = _by_client(new, synchronised_buffers, site)
        self._world.on_all_ranks(lambda: files.read_rows(self._path(snapshot.step), rows))
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
                    raise DamagedCheckpointError(f"its content is of step {snapshot.step}")
                self._compare(path, snapshot)
                self._newest = path
                return snapshot
            except DamagedCheckpointError as damage:
                self._warn(f"the checkpoint {path} is damaged ({damage}); trying the one before it")
        if found:
            raise InputError(
                f"all checkpoints in {self._folder} are damaged; choose another "
                f"{self._options.directory}, or remove the run directory to start again"
            )
        return None

    def _compare(self, path: Path, snapshot: Snapshot) -> None:
        """Refuse a checkpoint with other settings, or with unknown ones."""
        if self._settings is None:
            return
        if snapshot.settings:
            found = differences(dict(snapshot.settings), self._settings)
            if found:
                raise InputError(refusal(path, found, self._options))
        elif not self._compared:
            raise InputError(
                f"{path} does not say which settings it was written with (an earlier version of "
                "fedsys did not store them), and there is no config.yaml to compare with; choose "
                f"another {self._options.directory}, or restore config.yaml"
            )

    def _wait_and_check(self) -> None:
        """Wait for the last checkpoint, and check that it still exists."""
        self._wait()
        if self._newest is not None and not self._newest.is_dir():
            raise self._removed(self._newest)

    def _removed(self, path: Path) -> StorageError:
        return StorageError(
            f"{path} was removed during the run; start the run again, and leave "
            f"{self._folder.parent} alone until it ends"
        )

    def _create_folder(self, partial: Path) -> None:
        self._wait_and_check()
        if self._world.rank == 0:
            try:
                self._folder.mkdir(exist_ok=True)
                for leftover in self._folder.glob(".step-*"):
                    shutil.rmtree(leftover)
                partial.mkdir()
            except FileNotFoundError as error:
                raise self._removed(self._folder.parent) from error
            except OSError as error:
                what = f"cannot write a checkpoint to {self._folder}"
                raise StorageError.of(
                    error, what, "free some space and start the run again"
                ) from error

    def _wait(self) -> None:
        deadline = monotonic() + self._world.timeout
        while self._writing is not None:
            self._writing.join(0.5 if self._world.ranks > 1 else None)
            if not self._writing.is_alive():
                self._writing = None
            elif monotonic() > deadline or self._world.failure_detector.is_over:
                raise LostRankError("a rank did not write its part of a checkpoint")
        if self._failure is not None and not self._folder.is_dir():
            raise self._removed(self._folder)
        if self._failure is not None:
            raise self._failure

    def _write(
        self, partial: Path, target: Path, snapshot: Snapshot, rows: dict[str, Tensor]
    ) -> None:
        """Write a checkpoint in the background; `_wait` raises its failure."""
        try:
            checksum = files.write_rows(partial, self._world.rank, rows)
        except Exception as error:
            checksum, self._failure = "", _failure(error)
        try:
            checksums = self._gather(checksum)
            if self._world.rank == 0 and all(checksums):
                names = map(files.file_name, range(self._world.ranks))
                files.seal(partial, target, snapshot, dict(zip(names, checksums, strict=True)))
                self._newest = target
                for old in files.sealed(self._folder)[: -self._keep]:
                    files.remove(old)
        except Exception as error:
            self._failure = self._failure or _failure(error)

    def _gather(self, checksum: str) -> list[str]:
        """Return the checksums of all ranks on the first rank."""
        if self._store is None:
            return [checksum]
        part = f"{self._topic}, number {self._saves}, rank"
        keys = [f"{part} {rank}" for rank in range(self._world.ranks)]
        try:
            self._store.set(keys[self._world.rank], json.dumps(checksum))
            if self._world.rank != 0:
                return []
            self._store.wait(keys, _LONGEST_WAIT_FOR_RANKS)
            return [json.loads(self._store.get(key)) for key in keys]
        except RuntimeError as error:  # the process of the store, or a rank, is lost
            raise LostRankError("a rank did not write its part of a checkpoint") from error


def _failure(error: Exception) -> FedsysError:
    """Return the error for a checkpoint that could not be written."""
    if isinstance(error, FedsysError):
        return error
    reason = str(error).partition("\n")[0] or type(error).__name__
    return StorageError(f"cannot write a checkpoint: {reason}")


def _by_client(
    fields: Mapping[str, Tensor], synchronised_buffers: Tensor | None, site: Site
) -> dict[str, Tensor]:
    """Return one entry per field and hosted client: views, which loading writes to."""
    everything = (
        dict(fields) if synchronised_buffers is None else {**fields, _BUFFERS: synchronised_buffers}
    )
    return {
        f"{name}.{client}": rows[row]
        for name, rows in everything.items()
        for row, client in enumerate(site.hosted)
    }
