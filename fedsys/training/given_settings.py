"""Settings of the command line that no part of the configuration reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from fedsys.core.errors import InputError
from fedsys.training.config import CheckpointSettings, RunSettings, Settings
from fedsys.training.redaction import redacted_override

_PARTS_OF_A_PROBLEM = ("dataset", "model", "partition")
_OWNERS: dict[str, type] = {"": Settings, "run": RunSettings, "checkpoint": CheckpointSettings}


def check_given(config: DictConfig) -> list[str]:
    """Refuse added settings that nothing reads; return a warning for each that this run ignores.

    Hydra adds every setting that begins with + without asking whether something reads it, and a
    problem without data still has the groups `dataset`, `model` and `partition`.

    Args:
        config: the settings, with interpolations that are not resolved.
    """
    text = OmegaConf.to_yaml(config)
    choices = HydraConfig.get().runtime.choices
    warnings: dict[str, str] = {}
    for word, key, is_added in _given():
        group = key.partition(".")[0]
        if is_added and key not in choices and _is_unknown(key) and not _is_read(key, text):
            raise InputError(
                f"{word} adds an option that nothing reads; write it without + to see whether "
                "there is one of that name (all: fedsys --cfg job)"
            )
        if group in _PARTS_OF_A_PROBLEM and not _is_read(group, text):
            own = "problem." if OmegaConf.select(config, f"problem.{group}") is not None else ""
            advice = f"its own is {own}{group}" if own else f"it has no {group}"
            warnings[word] = f"{word} has no effect on problem={choices['problem']}: {advice}"
    return list(warnings.values())


def _given() -> Iterator[tuple[str, str, bool]]:
    """Yield each override of the command line, the name that it sets, and whether it adds it."""
    words = list(HydraConfig.get().overrides.task)
    for override in OverridesParser.create().parse_overrides(words):
        if not override.is_delete():
            key = override.key_or_group.replace("/", ".")
            word = redacted_override(str(override.input_line))
            yield word, key, override.is_add() or override.is_force_add()


def _is_unknown(key: str) -> bool:
    """Return whether settings that are checked by name have none of this name."""
    owner, _, name = key.rpartition(".")
    if owner not in _OWNERS:
        return owner.partition(".")[0] in ("run", "checkpoint")  # they have no settings inside
    fields: Any = _OWNERS[owner].__dataclass_fields__  # type: ignore[attr-defined]
    return name not in fields


def _is_read(name: str, text: str) -> bool:
    return re.search(rf"\$\{{{re.escape(name)}\b", text) is not None
