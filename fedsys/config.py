"""The typed configuration; the files are in conf/."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

GROUPS = ("algorithm", "problem", "model", "dataset", "partition", "communicator", "logger")


@dataclass
class RunSettings:
    """Where a run is kept."""

    root: str = "runs"
    dir: str | None = None
    name: str | None = None


@dataclass
class CheckpointSettings:
    """How often the state of all clients is kept."""

    every: int = 50
    minutes: float = 10.0
    keep: int = 2


@dataclass
class Settings:
    """Everything that can be set; `steps` and `rounds` are two ways to say how long."""

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
    participation: float = 1.0
    on_nonfinite: str = "stop"
    resume: str = "auto"
    run: RunSettings = field(default_factory=RunSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)


def register() -> None:
    """Let the files in conf/ refer to the types above as `schema`, and to the functions below."""
    ConfigStore.instance().store("schema", Settings)
    for name, function in (("by_scale", by_scale), ("steps_of_epochs", steps_of_epochs)):
        OmegaConf.register_new_resolver(f"fedsys.{name}", function, replace=True)


def by_scale(small: Any, paper: Any, *, _root_: DictConfig) -> Any:
    """${fedsys.by_scale:A,B} is A with scale=small and B with scale=paper."""
    return paper if _root_.scale == "paper" else small


def steps_of_epochs(epochs: float, samples: int, *, _root_: DictConfig) -> int:
    """${fedsys.steps_of_epochs:E,N}: the steps in which the clients see N samples E times."""
    seen = (_root_.clients or 1) * int(_root_.problem.batch_size)
    return max(1, round(epochs * samples / seen))


def folder() -> Path:
    """conf/: beside the package in the repository, inside it in a wheel."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
