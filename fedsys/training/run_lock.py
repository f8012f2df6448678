"""The lock of a run directory: one run writes to it at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from fedsys.core.errors import InputError
from fedsys.training.option_names import COMMAND_LINE, OptionNames

_SECONDS_BEFORE_WAIT_IS_REPORTED = 0.5
_SECONDS_BETWEEN_ATTEMPTS = 0.2


class RunLock:
    """Creates a folder and holds its file `.lock`, until `release` or the end of the process.

    Args:
        folder: the run directory.
        warn: called with a line if the lock has to be waited for.
        options: what messages call the options.
    """

    def __init__(
        self, folder: Path, warn: Callable[[str], None], options: OptionNames = COMMAND_LINE
    ) -> None:
        self._folder, self._warn, self._options = folder, warn, options
        self._path = folder / ".lock"
        self._file: IO[str] | None = None
        self._created: list[Path] = []
        self._found_empty = False

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock."""
        return self._file is not None and not self._file.closed

    @property
    def found_empty(self) -> bool:
        """Whether the folder had no other file when the lock was acquired."""
        return self._found_empty

    def acquire(self, patience: float) -> None:
        """Create the folder if necessary and lock it; wait at most `patience` seconds for that."""
        start, is_reported = monotonic(), False
        while True:
            self._create_folder()
            is_new = not self._path.exists()
            try:
                self._file = self._path.open("a")
            except FileNotFoundError:
                if monotonic() - start >= patience:
                    raise
                continue  # a run that was refused removed the folder that it had created
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._file.close()
                waited = monotonic() - start
                if waited >= patience:
                    self._created = []
                    raise InputError(
                        f"another run is writing to {self._folder}; choose another "
                        f"{self._options.directory}"
                    ) from None
                if waited > _SECONDS_BEFORE_WAIT_IS_REPORTED and not is_reported:
                    is_reported = True
                    self._warn(
                        f"waiting up to {patience:.0f} s for another run to leave {self._folder}"
                    )
                sleep(_SECONDS_BETWEEN_ATTEMPTS)
                continue
            with suppress(FileNotFoundError):
                # A run that was refused may have removed the file before this one locked it.
                if os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                    self._created += [self._path] if is_new else []
                    self._found_empty = not any(p != self._path for p in self._folder.iterdir())
                    return
            self._file.close()

    def remove_created(self) -> None:
        """Remove the lock file and the folders that `acquire` created, where they are empty."""
        for path in reversed(self._created):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def _create_folder(self) -> None:
        missing = [p for p in (self._folder, *self._folder.parents) if not p.exists()]
        for folder in reversed(missing):
            with suppress(FileExistsError):
                folder.mkdir()
                self._created.append(folder)
        if not self._folder.is_dir():
            raise NotADirectoryError(20, "Not a directory", str(self._folder))
