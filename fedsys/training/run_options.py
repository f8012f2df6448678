"""Interpret the options of a run: its length, its run directory and whether it resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from fedsys.training.best_record import BestRecord
from fedsys.training.config import Settings
from fedsys.training.early_stopping import EarlyStopping
from fedsys.training.plan import Plan
from fedsys.training.run_directory import run_timestamp


def chosen_options() -> dict[str, str]:
    """Return the file that was chosen of each group: `{"algorithm": "adafgda", ...}`."""
    choices: dict[str, Any] = dict(HydraConfig.get().runtime.choices)
    return {group: str(name) for group, name in choices.items() if not group.startswith("hydra/")}


def plan_of(settings: Settings) -> Plan:
    """Return the length of the run.

    A file may set `steps` and the command line `rounds`, or the reverse; the command line counts.
    """
    given = {override.partition("=")[0] for override in HydraConfig.get().overrides.task}
    steps, rounds = settings.steps, settings.rounds
    if "steps" in given and "rounds" not in given:
        rounds = None
    elif "rounds" in given and "steps" not in given:
        steps = None
    return Plan(steps, rounds, settings.evaluate_every)


def best_record_of(settings: Settings) -> BestRecord:
    """Return when the run stops early, and which record is kept."""
    given = settings.early_stopping
    options = EarlyStopping(given.metric, given.patience, float(given.min_delta))
    return BestRecord(options, settings.keep)


def is_sweep() -> bool:
    """Return whether this job is part of a sweep (`--multirun`)."""
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)


def run_path(settings: Settings) -> Path:
    """Return the absolute path of the run directory."""
    run = settings.run
    if run.dir is not None:
        path = Path(run.dir)
    elif is_sweep():
        path = Path(HydraConfig.get().runtime.output_dir)
    elif run.name is not None:
        path = Path(run.root) / run.name
    else:
        options = chosen_options()
        path = Path(run.root) / f"{options['algorithm']}-{options['problem']}-{run_timestamp()}"
    return path.absolute()


def resumes(settings: Settings, is_restart: bool) -> bool:
    """Return whether the run continues from a checkpoint.

    With resume=auto it does if it has a name or a folder of its own, or if the launcher has
    restarted its ranks.
    """
    if settings.resume == "auto" and is_restart:
        return True
    wanted = settings.resume.lower()
    return has_fixed_path(settings) if wanted == "auto" else wanted == "true"


def has_fixed_path(settings: Settings) -> bool:
    """Return whether the same command writes to the same run directory again."""
    return settings.run.name is not None or settings.run.dir is not None
