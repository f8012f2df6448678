"""The types of the configuration in conf/, and the functions that its files call."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

GROUPS = ("algorithm", "problem", "model", "dataset", "partition", "communicator", "logger")


@dataclass
class RunSettings:
    """The location of the run directory."""

    root: str = "runs"
    dir: str | None = None
    name: str | None = None


@dataclass
class CheckpointSettings:
    """The frequency of checkpoints, and how many are kept."""

    every: int = 50
    minutes: Any = 10.0  # not `float`: OmegaConf would convert `true` to 1.0
    keep: int = 2


@dataclass
class EarlyStoppingSettings:
    """When a run ends before its planned length."""

    metric: str | None = None
    patience: int | None = None
    min_delta: Any = 0.0  # not `float`, as above


@dataclass
class Settings:
    """All options of a run; its length is given by either `steps` or `rounds`."""

    algorithm: Any = None
    problem: Any = None
    model: Any = None
    dataset: Any = None
    partition: Any = None
    communicator: Any = None
    logger: Any = None
    clients: int | None = None
    steps: int | None = None
    rounds: int | None = None
    evaluate_every: int = 1
    seed: int = 0
    dtype: str = "float32"
    device: str = "auto"
    scale: str = "small"
    objective: str | None = None
    participation: Any = 1.0  # not `float`, as above
    on_nonfinite: str = "stop"
    resume: str = "auto"
    keep: str = "last"
    early_stopping: EarlyStoppingSettings = field(default_factory=EarlyStoppingSettings)
    run: RunSettings = field(default_factory=RunSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)


def register() -> None:
    """Register the types for the files in conf/, as `schema`, and the functions below."""
    ConfigStore.instance().store("schema", Settings)
    resolvers = by_scale, steps_of_epochs, of_public_data
    for name, function in ((one.__name__, one) for one in resolvers):
        OmegaConf.register_new_resolver(f"fedsys.{name}", function, replace=True)


def by_scale(small: Any, paper: Any, *, _root_: DictConfig) -> Any:
    """Resolve ${fedsys.by_scale:A,B}: A with scale=small, B with scale=paper."""
    return paper if _root_.scale == "paper" else small


def steps_of_epochs(epochs: float, samples: int, *, _root_: DictConfig) -> int:
    """Resolve ${fedsys.steps_of_epochs:E,N}: the steps of E epochs over N samples."""
    seen = (_root_.clients or 1) * int(_root_.problem.batch_size)
    return max(1, round(epochs * samples / seen))


def of_public_data(value: Any, *, _root_: DictConfig) -> Any:
    """Resolve ${fedsys.of_public_data:A}: A for a public data set, null for one of your own."""
    return None if "path" in (_root_.get("dataset") or {}) else value


def folder() -> Path:
    """Return the path of conf/: beside the package in the repository, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
