"""Checks of the arguments before Hydra reads them, and suggestions for misspelt ones."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import OmegaConf

from fedsys.core.errors import InputError
from fedsys.training.config import GROUPS, folder


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse arguments that are neither an override (name=value) nor an option of Hydra."""
    parser = _hydra_parser()
    if parser is None:
        return
    options, unknown = parser.parse_known_args(list(arguments))
    for word in unknown:
        if not word.startswith("-"):
            raise InputError(f"{word} is misplaced; write options such as --multirun first")
        name, _, value = word.lstrip("-").partition("=")
        following = arguments[list(arguments).index(word) + 1 :]
        value = value or next((v for v in following if _is_value(v)), "VALUE")
        raise InputError(f"{word} is not an option of fedsys; write settings as {name}={value}")
    for place, word in enumerate(options.overrides):
        if "=" not in word and not word.startswith("~"):
            following = options.overrides[place + 1 :]
            value = following[0] if following and _is_value(following[0]) else "VALUE"
            raise InputError(f"{word!r} has no value; write settings as {word}={value}")
        group, _, choice = word.partition("=")
        _check_choice(group, choice, options.config_dir)
        if word.lstrip("+").startswith("hydra.run.dir="):
            raise InputError(
                "hydra.run.dir is not used; run.dir=FOLDER sets the run directory, and "
                "run.root=FOLDER the folder of all run directories"
            )


def with_quoted_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with quotes around paths with {client}, which Hydra would not read."""
    return [_quoted(argument) for argument in arguments]


def _quoted(argument: str) -> str:
    name, equals, value = argument.partition("=")
    is_path = equals and "{client}" in value and not set("'\"[,: ") & set(value)
    return f'{name}="{value}"' if is_path else argument


def _check_choice(group: str, value: str, config_dir: str | None) -> None:
    """Refuse a value that cannot be the name of a file; Hydra would raise a traceback."""
    if group not in GROUPS:
        return
    is_list = value.startswith("[")
    if (is_list and group != "logger") or value.startswith("{") or _is_literal(value):
        folders = [folder(), *([Path(config_dir)] if config_dir else [])]
        names = {file.stem for conf in folders for file in (conf / group).glob("*.yaml")}
        raise InputError(f"{group} must be one of {', '.join(sorted(names))}; got {value}")


def _is_literal(value: str) -> bool:
    """Return whether Hydra parses a value as null, a bool or a number."""
    if value.lower() in ("", "null", "true", "false"):
        return True
    try:
        float(value)
    except ValueError:
        return False
    return True


def suggestion(key: str, value_of: str, settings: Any) -> str:
    """Return a suggestion for an option `key` that does not exist, or an empty text.

    Args:
        key: the unknown name.
        value_of: `=value` as it was given, which the suggestion repeats.
        settings: the configuration that has the known names.
    """
    plain = OmegaConf.to_container(settings, resolve=False) if settings is not None else {}
    known = list(_paths(plain))
    paths = [path for path in known if path.rpartition(".")[2] == key]
    if not paths:
        names = {path.rpartition(".")[2]: path for path in reversed(known)}
        close = get_close_matches(key, list(names), n=1, cutoff=0.8)
        paths = [names[name] for name in close or get_close_matches(key, list(names), n=2)]
    return f"did you mean {' or '.join(path + value_of for path in paths[:3])}?" if paths else ""


def _paths(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings, except those of Hydra itself."""
    for key in node if isinstance(node, Mapping) else ():
        if not prefix and key == "hydra":
            continue
        path = f"{prefix}{key}"
        yield path
        yield from _paths(node[key], f"{path}.")


def _is_value(word: str) -> bool:
    return "=" not in word and not word.startswith("-")


def _hydra_parser() -> ArgumentParser | None:
    """Return the argument parser of Hydra, with errors in one line; None if it has moved."""
    try:
        from hydra._internal.utils import get_args_parser
    except ImportError:  # private in Hydra 1.3; without it Hydra prints its usage itself
        return None
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise InputError(f"{message}; see fedsys --help")

    parser.error = refuse  # type: ignore[method-assign]
    return parser
