"""The settings that two starts of a run must have in common, and how they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any

from fedsys.training.option_names import COMMAND_LINE, OptionNames
from fedsys.training.redaction import PLACEHOLDER, redacted

Settings = dict[str, Any]
"""JSON values by dotted name."""

NO_NUMBER_DEPENDS_ON = (
    "run", "checkpoint", "logger", "resume", "objective", "evaluate_every", "device", "steps",
    "rounds", "early_stopping.patience", "early_stopping.min_delta", "communicator.timeout",
    "communicator.startup_timeout", "communicator.backend",
    "communicator.shared_memory", "dataset.download", "problem.dataset.download",
    "problem.cross_site",
)  # fmt: skip
"""Settings that may change between two starts of a run.

They say where a run is written and shown, where it computes (`device`, `backend` and
`shared_memory`, like the number of ranks, change only the order of sums) and how long it is. A
hyperparameter that depends on the length is compared by the value that was used (`AS_USED`).
"""
AS_USED = "hyperparameters"
_RELATIVE_TOLERANCE = 1e-9
"""Constants of a problem are sums over ranks, whose order may differ between two starts."""
_MOST_SHOWN = 6
_LONGEST_TEXT = 80


def compared_settings(
    config: Mapping[str, Any], hyperparameters: Mapping[str, Any] | None = None
) -> Settings:
    """Return every setting that can change a result, and the hyperparameters that are used."""
    found = {
        name: value
        for name, value in _flat(redacted(dict(config)))
        if not any(name == free or name.startswith(f"{free}.") for free in NO_NUMBER_DEPENDS_ON)
    }
    return {**found, **dict(_flat({AS_USED: redacted(dict(hyperparameters or {}))}))}


def differences(before: Settings, now: Settings) -> list[str]:
    """Return `name=value, now value` for each setting that differs.

    The hyperparameters that were used are compared if both starts know them.
    """
    used = [any(name.startswith(f"{AS_USED}.") for name in one) for one in (before, now)]
    names = [
        name
        for name in dict.fromkeys([*before, *now])
        if all(used) or not name.startswith(f"{AS_USED}.")
    ]
    found = {
        name: (before.get(name, _NOT_SET), now.get(name, _NOT_SET))
        for name in names
        if not _same(name, before.get(name, _NOT_SET), now.get(name, _NOT_SET))
    }
    settings = {name: pair for name, pair in found.items() if not name.startswith(f"{AS_USED}.")}
    return [
        f"{name}={_text(old)}, now {_text(new)}"
        # A hyperparameter that differs because of a setting is not listed beside that setting.
        for name, (old, new) in without_copies(settings or found).items()
    ]


def without_copies(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop entries that repeat another one: `problem.dataset.limit` repeats `dataset.limit`."""
    return {
        name: value
        for name, value in values.items()
        if not ("." in name and values.get(name.partition(".")[2], _NOT_SET) == value)
    }


def _listed(found: list[str]) -> str:
    """Return the first differences, and the number of the others."""
    more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    return "; ".join(found[:_MOST_SHOWN]) + more


def refusal(where: object, found: list[str], options: OptionNames = COMMAND_LINE) -> str:
    """Return the message that refuses to continue a run with other settings."""
    other = f"choose another {options.directory}"
    advice = f"{other}, or give the settings it was started with"
    if all(line.startswith(f"{AS_USED}.") for line in found):
        advice = f"these depend on the length of the run: {other}, or the same rounds or steps"
    return f"{where} was run with {_listed(found)}; {advice}"


_NOT_SET = "(not set)"


def _same(name: str, old: Any, new: Any) -> bool:
    if PLACEHOLDER in (old, new):
        return True  # a secret is not stored, and changes no result
    if old != old and new != new:
        return True  # NaN
    if name.startswith(f"{AS_USED}.") and isinstance(old, float) and isinstance(new, float):
        return isclose(old, new, rel_tol=_RELATIVE_TOLERANCE)
    return bool(old == new) and isinstance(old, bool) == isinstance(new, bool)


def _flat(value: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{name}.") if inner else [(name, "{}")]
        else:
            yield name, _plain(inner)


def _plain(value: Any) -> Any:
    """Return the value as JSON would return it."""
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else type(value).__name__


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."
