"""Checks before a run writes anything, and the clean-up after one that is refused."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedsys.core.errors import FedsysError, InputError, unforeseen
from fedsys.core.fields import check_types, type_hints
from fedsys.training import checkpoint
from fedsys.training.config import (
    CheckpointSettings,
    EarlyStoppingSettings,
    RunSettings,
    Settings,
)
from fedsys.training.file_names import check_run_dir, check_run_name

_WORDS = {"resume": ("auto", "true", "false"), "scale": ("small", "paper")}


def check_settings(settings: Any) -> None:
    """Refuse settings of the wrong type or out of range; groups are checked when built."""
    parts: tuple[tuple[str, str | None, type], ...] = (
        ("settings", None, Settings),
        ("run", "run", RunSettings),
        ("checkpoint", "checkpoint", CheckpointSettings),
        ("early_stopping", "early_stopping", EarlyStoppingSettings),
    )
    for owner, key, kind in parts:
        node = settings if key is None else settings.get(key)
        hints = type_hints(kind)
        missing = [name for name in hints if node is None or name not in node]
        if missing:
            raise InputError(f"{owner}: {missing[0]} is missing; it cannot be deleted")
        if key is None:
            nodes = ("run", "checkpoint", "early_stopping")
            hints = {**hints, **dict.fromkeys(nodes, Any), "participation": float}
        elif key == "checkpoint":
            hints = {**hints, "minutes": float}
        elif key == "early_stopping":
            hints = {**hints, "min_delta": float}
        check_types(owner, hints, {name: node[name] for name in hints})
    for name, values in _WORDS.items():
        value = settings[name]
        if str(value).lower() not in values:
            raise InputError(f"{name} must be one of {', '.join(values)}, got {value!r}")
    check_run_name(settings.run.name)
    check_run_dir(settings.run.dir)
    wanted = settings.checkpoint
    checkpoint.check(wanted.every, wanted.keep, wanted.minutes)


@contextmanager
def traceback_in(folder: Path, rank: int) -> Iterator[None]:
    """Write the traceback of an unexpected exception to a file of the run directory."""
    try:
        yield
    except FedsysError:
        raise
    except Exception as error:
        file: Path | None = folder / f"traceback-{rank}.txt"
        try:
            (folder / f"traceback-{rank}.txt").write_text(
                "".join(traceback.format_exception(error))
            )
        except OSError:
            file = None
        raise unforeseen(error, file) from error


def sweep_folder() -> Path | None:
    """Return the folder of the sweep that this job is part of, None outside of a sweep."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    return Path(hydra.sweep.dir) if hydra.mode == RunMode.MULTIRUN else None


def forget_refused_job() -> None:
    """Remove the folder that Hydra created for a job of a sweep, if the job left it empty."""
    from hydra.core.hydra_config import HydraConfig

    if sweep_folder() is not None:
        with suppress(OSError):
            Path(HydraConfig.get().runtime.output_dir).rmdir()


def forget_refused_sweep(folder: Path | None) -> None:
    """Remove the folder of a sweep whose jobs were all refused, if it has only Hydra's file."""
    plan = "multirun.yaml"
    if folder is None or not folder.is_dir() or {f.name for f in folder.iterdir()} != {plan}:
        return
    with suppress(OSError):
        (folder / plan).unlink()
        folder.rmdir()
        folder.parent.rmdir()
