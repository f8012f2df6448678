"""Errors for an algorithm on a problem that it cannot solve, with the choices that fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf

from fedsys.core.algorithm import Algorithm, applies_terms
from fedsys.core.errors import InputError, KindError, TermError
from fedsys.training import config


def explain_kind(error: KindError, choices: Mapping[str, str], needs: str) -> InputError:
    """Return the error in terms of the command line, with the problems that fit."""
    fitting = [name for name, kinds in problem_kinds().items() if needs in kinds]
    advice = f"; try problem={' or problem='.join(fitting)}" if fitting else ""
    return InputError(
        f"{choices['algorithm']} needs a {needs} problem; problem={choices['problem']} is "
        f"{' and '.join(error.kinds)}{advice}",
        error.reporter,
    )


def explain_terms(
    error: TermError, choices: Mapping[str, str], algorithm: Algorithm[Any, Any]
) -> InputError:
    """Return the error in terms of the command line, with the algorithms that fit."""
    fitting = [
        name
        for name, other in _targets("algorithm").items()
        if getattr(other, "kind", None) == algorithm.kind and applies_terms(other, error.maps)
    ]
    advice = f"; try algorithm={' or algorithm='.join(fitting)}" if fitting else ""
    return InputError(
        f"{choices['algorithm']} does not support the composite term or constraint of "
        f"problem={choices['problem']} ({error.terms}){advice}",
        error.reporter,
    )


def problem_kinds() -> dict[str, tuple[str, ...]]:
    """Return the kinds of each problem in conf/problem."""
    return {name: getattr(target, "kinds", ()) for name, target in _targets("problem").items()}


def _targets(group: str) -> dict[str, Any]:
    """Return the class that each file of a group in conf/ builds."""
    files = sorted((config.folder() / group).glob("*.yaml"))
    return {file.stem: get_class(_target(file, group)) for file in files}


def _target(file: Path, group: str) -> str:
    """Return the name of the class; that of a preset is in the file that it is based on."""
    settings: Any = OmegaConf.load(file)
    for key in ("_target_", f"{group}._target_"):
        if found := OmegaConf.select(settings, key):
            return str(found)
    base = str(settings.defaults[0]).rpartition("/")[2].partition("@")[0]
    return _target(file.with_name(f"{base}.yaml"), group)
