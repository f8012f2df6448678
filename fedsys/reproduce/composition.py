"""Compose the settings of many runs that differ in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig


class Composer:
    """Composes settings with Hydra, once for all runs that choose the same files.

    Hydra needs a tenth of a second to compose settings. A dotted override such as algorithm.lr=0.1
    changes a value and chooses no file, so it is applied to composed settings, as Hydra does.
    Hydra must be initialised; see `hydra_context`.
    """

    def __init__(self) -> None:
        self._bases: dict[tuple[str, ...], tuple[DictConfig, Any]] = {}

    def settings(self, overrides: Sequence[str]) -> DictConfig:
        """Return settings that are not resolved yet."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        chosen = tuple(one for one in overrides if not _changes_a_value(one))
        config = self._base(chosen)[0].copy()
        try:
            for one in overrides:
                if _changes_a_value(one):
                    OmegaConf.update(config, *_parsed(one))
        except OmegaConfBaseException:
            return self._base(tuple(overrides))[0].copy()  # Hydra explains what is wrong
        return config

    def hydra_config(self, overrides: Sequence[str]) -> Any:
        """Return the settings with Hydra's own, for `HydraConfig`."""
        return self._base(tuple(one for one in overrides if not _changes_a_value(one)))[1]

    def _base(self, overrides: tuple[str, ...]) -> tuple[DictConfig, Any]:
        from hydra import compose
        from omegaconf import open_dict

        if overrides not in self._bases:
            whole = compose("config", list(overrides), return_hydra_config=True)
            config = whole.copy()
            with open_dict(config):
                del config["hydra"]
            self._bases[overrides] = config, whole
        return self._bases[overrides]


def _changes_a_value(override: str) -> bool:
    """Return whether an override has a dotted name and neither adds nor deletes anything."""
    name = override.partition("=")[0]
    return "." in name and name.replace(".", "").replace("_", "").isalnum() and "hydra." not in name


@cache
def _parsed(override: str) -> tuple[str, Any]:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (parsed,) = OverridesParser.create().parse_overrides([override])
    return parsed.key_or_group, parsed.value()
