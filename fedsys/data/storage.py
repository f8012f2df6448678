"""Folders of data: where they are, and how one comes to be whole or not at all."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedsys.errors import InputError


def data_folder(root: str | None) -> Path:
    """The folder with data sets: the given one, else FEDSYS_DATA, else ./data."""
    return Path(root or os.environ.get("FEDSYS_DATA") or "data")


def cache_folder() -> Path:
    """Where unpacked and decoded files are kept: FEDSYS_CACHE, else ~/.cache/fedsys."""
    return Path(os.environ.get("FEDSYS_CACHE") or Path.home() / ".cache" / "fedsys")


def make_folder(target: Path, fill: Callable[[Path], Path]) -> None:
    """Make a folder that is there whole or not at all, unless it is there.

    One process of a host does it while the others wait. It works in a folder of another name, of
    which nothing is ever read, and renames the result when it is complete; what a killed process
    left is removed.

    Args:
        target: the folder to make.
        fill: puts files into the folder it is given, and returns the one (inside) to be renamed.
    """
    if _is_there(target):
        return
    try:
        with _one_at_a_time(target):
            if _is_there(target):
                return
            for stale in target.parent.glob(f".{target.name}.partial-*"):
                shutil.rmtree(stale)
            partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
            try:
                partial.chmod(0o755)
                fill(partial).rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"cannot make {target}: {error.strerror or error}; let FEDSYS_CACHE (or dataset.root, "
            "for a download) be a folder that can be written to"
        ) from error


def _is_there(target: Path) -> bool:
    return target.is_dir() and any(target.iterdir())


@contextmanager
def _one_at_a_time(target: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find(root: Path, name: str) -> Path | None:
    """A file, or its .gz."""
    candidates = (root / name, root / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def unpacked(root: Path, names: Sequence[str]) -> Path | None:
    """A folder that holds all these files unpacked; None if one is missing.

    That is `root`, or a folder of the cache where its .gz files are unpacked: nothing is written
    into `root`.
    """
    found = [path for path in (find(root, name) for name in names) if path is not None]
    if len(found) < len(names):
        return None
    if not any(path.suffix == ".gz" for path in found):
        return root

    def fill(folder: Path) -> Path:
        for name, source in zip(names, found, strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            _unpack(source, folder / name)
        return folder

    target = cache_folder() / f"{names[0].split('/')[0]}-{fingerprint(found)}"
    make_folder(target, fill)
    return target


def extracted(archive: Path) -> Path:
    """A folder of the cache with the content of a .tar.gz."""

    def fill(folder: Path) -> Path:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise InputError(f"{archive} is damaged: {error}") from error
        return folder

    target = cache_folder() / f"{archive.name.removesuffix('.tar.gz')}-{fingerprint([archive])}"
    make_folder(target, fill)
    return target


def _unpack(source: Path, target: Path) -> None:
    if source.suffix != ".gz":
        shutil.copyfile(source, target)
        return
    try:
        with gzip.open(source) as packed, target.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{source} is damaged: {error}") from error


def fingerprint(files: Iterable[Path], *settings: object) -> str:
    """A name for these files as they are now, and for what is made of them."""
    digest = hashlib.sha256(repr(settings).encode())
    for path in files:
        status = path.stat()
        digest.update(f"{path.absolute()} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
