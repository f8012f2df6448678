"""Errors of Hydra and OmegaConf, as one line that says what was given and what is allowed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from hydra.errors import InstantiationException, MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from fedsys.cli.arguments import suggestion
from fedsys.core.errors import FedsysError, InputError
from fedsys.training import config

_RENAMED = {"group_in_features": "preparation=authors|plain|with_group", "split_seed": "seed"}
"""Options of earlier versions, and what replaced each in the same group."""


def as_fedsys_error(error: BaseException) -> FedsysError:
    """Return the error of fedsys inside `error`, or what Hydra says in one line."""
    causes = _causes(error)
    for cause in causes:
        if isinstance(cause, FedsysError):
            return cause
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return InputError(_unknown_choice(error.missing_cfg_file, error.options or []))
    for cause in causes:
        if isinstance(cause, ConfigAttributeError | ConfigKeyError):
            return InputError(_unknown_option(cause))
    if isinstance(error, InstantiationException) and len(causes) > 1:
        causes = causes[1:]
    lines = dict.fromkeys(str(cause).splitlines()[0].strip() for cause in causes if str(cause))
    return InputError("; ".join(line.rstrip(".") for line in lines))


def _causes(error: BaseException) -> list[BaseException]:
    """Return the error and the chain of errors that it was raised from."""
    chain: list[BaseException] = []
    inner: BaseException | None = error
    while inner is not None:
        chain.append(inner)
        inner = inner.__cause__
    return chain


def _unknown_choice(missing_file: str, known: Sequence[str]) -> str:
    """Return the message for `group=name` where conf/ has no such file."""
    group, _, name = missing_file.partition("/")
    files = (config.folder() / group).rglob("*.yaml")
    names = (file.relative_to(config.folder() / group).with_suffix("") for file in files)
    options = sorted({*map(str, names), *known})
    close = get_close_matches(name, options, n=3)
    advice = f"did you mean {' or '.join(close)}?" if close else "choose one of"
    others = "" if close else f" {', '.join(options)}"
    return f"{group}={name} is unknown; {advice}{others}"


def _unknown_option(error: OmegaConfBaseException) -> str:
    """Return the message for an option that does not exist, with the ones that do."""
    parent: Any = error.parent_node
    known = sorted(str(key) for key in parent or ())
    folder = str(error.full_key).removesuffix(str(error.key))
    renamed = _RENAMED.get(str(error.key), "")
    if renamed.partition("=")[0] in known:
        return f"{error.full_key} is now {folder}{renamed}"
    close = get_close_matches(str(error.key), known, n=1)
    advice = f"did you mean {folder}{close[0]}?" if close else f"there are {', '.join(known)}"
    if str(error.full_key) == str(error.key) and (not close or str(error.key) not in known):
        advice = suggestion(str(error.key), _value_given(str(error.key)), parent) or advice
    group = str(error.full_key).split(".")[0]
    if any(word.startswith(f"{group}=") and "," in word for word in sys.argv):
        advice += f"; set an option of a group that the sweep varies by ++{error.full_key}=..."
    return f"there is no option {error.full_key}; {advice} (all: fedsys --cfg job)"


def _value_given(key: str) -> str:
    """Return `=value` of an override on the command line, or an empty text."""
    return next((word[len(key) :] for word in sys.argv if word.startswith(f"{key}=")), "")
