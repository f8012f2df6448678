"""Python's defaults are the command line's: a YAML equals its class, or is a preset of one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from fedsys.training import config
from fedsys.training.config import GROUPS

CONF = config.folder()
PRESET = re.compile(r"^# Preset of (\S+?):? ", re.MULTILINE)
FILES = [
    (group, str(file.relative_to(CONF / group).with_suffix("")))
    for group in GROUPS
    for file in sorted((CONF / group).rglob("*.yaml"))
]
EXPLICIT = {
    "dataset.root": "an interpolation of FEDSYS_DATA, which None stands for in Python",
    "problem.imbalance": "a class keeps all data; the YAML asks for rare positives",
    "problem/group_fair.dataset": "the group `dataset`, whose default has no groups of people",
    "problem/group_fair.model": "the group `model`",
}


def base_of(group: str, name: str) -> str | None:
    """The file that a preset says it is based on."""
    found = PRESET.search((CONF / group / f"{name}.yaml").read_text())
    return found.group(1) if found else None


BASES = [(group, name) for group, name in FILES if base_of(group, name) is None]
PRESETS = [(group, name) for group, name in FILES if base_of(group, name) is not None]


@pytest.fixture(autouse=True)
def _hydra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("FEDSYS_DATA", raising=False)
    config.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def chosen(group: str, name: str) -> DictConfig:
    settings = compose("config", overrides=[f"{group}={name}"])
    OmegaConf.resolve(settings)
    node = settings[group]
    return next(iter(node.values())) if group == "logger" else node


def values(made: object) -> dict[str, Any]:
    """What an object was made with: its fields, or the attributes that it keeps."""
    kept = {name.lstrip("_"): value for name, value in vars(made).items()}
    return {name: values(v) if _is_ours(v) else v for name, v in kept.items()}


def _is_ours(value: object) -> bool:
    return type(value).__module__.startswith("fedsys") and hasattr(value, "__dataclass_fields__")


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(("group", "name"), BASES, ids=lambda part: part)
def test_a_yaml_has_the_defaults_of_its_class(group: str, name: str) -> None:
    node = chosen(group, name)
    if node is None:
        return  # logger=jsonl builds nothing
    by_default = values(instantiate({"_target_": node._target_}))
    by_file = values(instantiate(node, _convert_="all"))
    for key in node:
        places = {f"{group}.{key}", f"{group}/{name}.{key}"}
        if key in by_file and not places & EXPLICIT.keys():
            assert plain(by_file[key]) == plain(by_default[key]), key


@pytest.mark.parametrize(("group", "name"), PRESETS, ids=lambda part: part)
def test_a_preset_is_built_on_its_base_and_holds_only_what_differs(group: str, name: str) -> None:
    base = base_of(group, name)
    assert base is not None
    raw = OmegaConf.load(CONF / group / f"{name}.yaml")
    assert isinstance(raw, DictConfig)
    included = [str(entry).split("@")[0].rpartition("/")[2] for entry in raw.defaults]
    assert base in included
    other = chosen(group, base)
    own: Any = raw.get(group, {}) if "@package _global_" in _text(group, name) else raw
    own = {key: value for key, value in own.items() if key not in ("defaults", "root", "dataset")}
    repeated = [key for key, value in _leaves(own) if OmegaConf.select(other, key) == value]
    assert not repeated


def _text(group: str, name: str) -> str:
    return (CONF / group / f"{name}.yaml").read_text()


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping | DictConfig):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
