"""Names of files and folders that come from settings, metrics or run directories."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from fedsys.core.errors import InputError

_LONGEST = 80


def slug(text: str) -> str:
    """Return a text as a file name: no separator, no leading dot, at most 80 characters."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip("-_")[:_LONGEST].lstrip(".") or "unnamed"


def file_stems(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return a file name for each name, unique even on a case-insensitive file system."""
    used = {name.lower() for name in taken}
    stems: dict[str, str] = {}
    for name in names:
        stem, number = slug(name), 2
        while stem.lower() in used:
            stem, number = f"{slug(name)}-{number}", number + 1
        used.add(stem.lower())
        stems[name] = stem
    return stems


def check_run_name(name: str | None) -> None:
    """Refuse a run name that is a path outside of `run.root`."""
    if name is None:
        return
    path = PurePosixPath(name)
    inside = not path.is_absolute() and path.parts and ".." not in path.parts
    if not inside or any(not character.isprintable() for character in name):
        raise InputError(
            f"run.name must be the name of a folder in run.root, got {name!r}; "
            "use run.dir to write elsewhere"
        )


def check_run_dir(path: str | None) -> None:
    """Refuse a path that no file system accepts."""
    if path is not None and (not path or "\0" in path):
        raise InputError(f"run.dir must be the path of a folder, got {path!r}")
