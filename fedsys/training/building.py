"""Build the objects of a configuration group; refuse a wrong one in one line."""

from __future__ import annotations

from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from fedsys.communication import Communicator
from fedsys.core.algorithm import Algorithm
from fedsys.core.errors import InputError
from fedsys.system.compat import torchvision
from fedsys.training import config as conf

_CONTRACTS: dict[str, type] = {"algorithm": Algorithm, "communicator": Communicator}
_METHODS = {"problem": ("oracle",), "logger": ("begin", "record", "finish")}


def build(settings: DictConfig, group: str) -> Any:
    """Build the object that was chosen of a group; refuse one that lacks the group's interface."""
    return _built(group, settings.get(group))


def build_loggers(settings: DictConfig) -> list[Any]:
    """Build all loggers that were chosen; null is no logger."""
    chosen = settings.get("logger")
    if chosen is None:
        return []
    if not isinstance(chosen, DictConfig):
        raise _not_a_choice("logger", chosen)
    return [_built("logger", one) for one in chosen.values() if one is not None]


def _built(group: str, node: Any) -> Any:
    if not isinstance(node, DictConfig) or not isinstance(node.get("_target_"), str):
        raise _not_a_choice(group, node)
    if "_target_: torchvision." in OmegaConf.to_yaml(node):
        torchvision()  # which may not be importable by its name alone
    made = instantiate(node)
    fits = isinstance(made, _CONTRACTS.get(group, object)) and all(
        callable(getattr(made, method, None)) for method in _METHODS.get(group, ())
    )
    if not fits:
        raise InputError(
            f"{group}: {node['_target_']} builds a {type(made).__name__}, which does not implement "
            f"the interface of {group}"
        )
    return made


def _not_a_choice(group: str, given: object) -> InputError:
    files = sorted((conf.folder() / group).glob("*.yaml"))
    names = ", ".join(file.stem for file in files)
    return InputError(f"{group} must be one of {names}; got {given}")
