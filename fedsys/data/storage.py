"""Folders of data: where they are, and how one comes to be whole or not at all."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedsys.core.errors import InputError, StorageError

MOST_UNPACKED = 8 << 30
"""Bytes that one archive may unpack to; STL-10, the largest of ours, has 3.1 GB."""
_SMALL = 64 << 20
_LARGEST_RATIO = 100
"""Beyond `_SMALL` bytes nothing may grow by more than this; images grow by 2 to 10."""
_MOST_MEMBERS = 1_000_000
_PIECE = 1 << 20
_PARTIAL = ".partial-"


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
            for stale in target.parent.glob(f".{target.name}{_PARTIAL}*"):
                shutil.rmtree(stale)
            # Not by tempfile, whose folders do not follow the umask.
            partial = target.parent / f".{target.name}{_PARTIAL}{secrets.token_hex(4)}"
            partial.mkdir()
            try:
                fill(partial).rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        advice = (
            "let FEDSYS_CACHE (or dataset.root, for a download) be a folder that can be written to"
        )
        raise StorageError.of(error, f"cannot make {target}", advice) from error


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


def unpacked(
    root: Path, names: Sequence[str], verify: Callable[[Path], object] | None = None
) -> Path | None:
    """A folder that holds all these files unpacked; None if one is missing.

    That is `root`, or a folder of the cache where its .gz files are unpacked: nothing is written
    into `root`, and nothing is kept that `verify` refuses.
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
        _verified(folder, root, verify)
        return folder

    target = cache_folder() / f"{names[0].split('/')[0]}-{fingerprint(found)}"
    make_folder(target, fill)
    return target


def extracted(archive: Path, verify: Callable[[Path], object] | None = None) -> Path:
    """A folder of the cache with the content of a .tar.gz, if `verify` accepts it."""

    def fill(folder: Path) -> Path:
        extract(archive, folder)
        _verified(folder, archive, verify)
        return folder

    target = cache_folder() / f"{archive.name.removesuffix('.tar.gz')}-{fingerprint([archive])}"
    make_folder(target, fill)
    return target


def extract(archive: Path, folder: Path) -> None:
    """Extract a .tar.gz: files and folders inside of `folder` only, and no more than is sane."""
    packed, unpacked = archive.stat().st_size, 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for number, member in enumerate(tar):
                if not (member.isfile() or member.isdir()) or member.name.startswith("/"):
                    raise ValueError(f"{member.name!r} is no file or folder of an archive")
                if number > _MOST_MEMBERS:
                    raise ValueError(f"it has more than {_MOST_MEMBERS} members")
                unpacked += member.size
                refuse_bomb(archive, packed, unpacked)
                tar.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise damaged(archive, error) from error


def damaged(path: Path, why: object) -> InputError:
    """The one line about a file that cannot be read."""
    if isinstance(why, InputError):
        return why
    reason = " ".join(str(why).split()) or type(why).__name__
    line = f"{path} is damaged: {reason[:200]}"
    cache = cache_folder().absolute()
    if path.absolute().is_relative_to(cache):
        entry = cache / path.absolute().relative_to(cache).parts[0]
        if _PARTIAL not in entry.name:
            line += f"; remove {entry}, which is made again from the original files"
    return InputError(line)


def _verified(folder: Path, original: Path, verify: Callable[[Path], object] | None) -> None:
    """Verify unpacked files before they are kept; an error names the original ones."""
    if verify is None:
        return
    try:
        verify(folder)
    except InputError as error:
        raise InputError(error.message.replace(str(folder), str(original))) from error


def refuse_bomb(path: Path, packed: int, unpacked: int) -> None:
    """Refuse an archive that becomes absurdly large: in all, or for its size."""
    most = min(MOST_UNPACKED, max(_SMALL, _LARGEST_RATIO * packed))
    if unpacked > most:
        raise InputError(f"{path} is damaged: its {packed} bytes unpack to more than {most}")


def _unpack(source: Path, target: Path) -> None:
    if source.suffix != ".gz":
        shutil.copyfile(source, target)
        return
    packed, unpacked = source.stat().st_size, 0
    try:
        with gzip.open(source) as compressed, target.open("wb") as plain:
            while piece := compressed.read(_PIECE):
                unpacked += len(piece)
                refuse_bomb(source, packed, unpacked)
                plain.write(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(source, error) from error


def fingerprint(files: Iterable[Path], *settings: object) -> str:
    """A name for these files as they are now, and for what is made of them."""
    digest = hashlib.sha256(repr(settings).encode())
    for path in files:
        status = path.stat()
        digest.update(f"{path.absolute()} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
