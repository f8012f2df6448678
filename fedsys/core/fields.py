"""Validation of the types of everything that a configuration can set.

Configurations come from YAML and the command line, where `true`, `nan`, `1e30`, a list or null can
stand in any place. The declared type of a field says what it takes; a class adds its own ranges.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from math import isfinite
from numbers import Integral, Real
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from fedsys.core.errors import require

_LARGEST_INT = 2**63 - 1
"""The largest integer that torch and numpy take."""


class Checked:
    """Base class of the dataclasses that a configuration builds: every field has its type.

    A subclass with a `__post_init__` of its own calls `super().__post_init__()` first, and then
    checks ranges.
    """

    def __post_init__(self) -> None:
        cls = type(self)
        given = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        check_types(getattr(cls, "name", cls.__name__), cls._types(), given)

    @classmethod
    def _types(cls) -> Mapping[str, Any]:
        """The declared type of every field."""
        return type_hints(cls)


def check_types(owner: str, hints: Mapping[str, Any], given: Mapping[str, object]) -> None:
    """Refuse the first value that does not have the type declared for it.

    Args:
        owner: who the values are for, in the error.
        hints: the declared types, resolved.
        given: the values by name; names without a type are not checked.
    """
    for name, value in given.items():
        if name in hints:
            require(fits(value, hints[name]), owner, name, value, _rule(value, hints[name]))


def type_hints(owner: Any) -> dict[str, Any]:
    """The declared types of a class' fields or a function's arguments.

    Annotations may be written as types or as strings (`from __future__ import annotations`). One
    that names something not importable at run time (a class local to a function) counts as no type;
    the others of the same class are still checked.
    """
    return _resolved(owner)


@cache
def _resolved(owner: Any) -> dict[str, Any]:
    try:
        return get_type_hints(owner, include_extras=True)
    except NameError:
        return _resolved_one_by_one(owner)


def _resolved_one_by_one(owner: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for source in reversed(getattr(owner, "__mro__", (owner,))):
        module = sys.modules.get(source.__module__)
        for name, hint in vars(source).get("__annotations__", {}).items():
            lone = type("lone", (), {"__annotations__": {name: hint}})
            try:
                resolved = get_type_hints(lone, vars(module) if module else {}, include_extras=True)
            except NameError:
                found.pop(name, None)
            else:
                found.update(resolved)
    return found


def fits(value: object, hint: Any) -> bool:
    """Return whether a value has a declared type. Types that say nothing at run time fit."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return value in hint.__metadata__ if _is_word(value) else fits(value, arguments[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if hint is bool:
        return isinstance(value, bool)
    if hint in (int, float):
        return _is_number(value, hint)
    if origin is Sequence:
        if not isinstance(value, Sequence) or isinstance(value, str):
            return False
        return all(fits(item, arguments[0]) for item in value)
    if getattr(hint, "_is_protocol", False):
        # A string has a method `split`, as a partition has, and is none.
        plain = isinstance(value, str | Real | Sequence | Mapping | type)
        return not plain and all(hasattr(value, name) for name in _methods(hint))
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def is_number(value: object) -> bool:
    """Return whether a value is a finite real number; a bool is not."""
    return _is_number(value, float)


def _is_number(value: object, kind: type) -> bool:
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        return False
    if isinstance(value, Integral):
        return abs(int(value)) <= _LARGEST_INT
    return isfinite(value)


def _is_word(value: object) -> bool:
    return isinstance(value, str)


def _methods(protocol: Any) -> list[str]:
    return [
        name
        for name, member in vars(protocol).items()
        if callable(member) and (name == "__call__" or not name.startswith("_"))
    ]


_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    types.NoneType: "null",
}
_PLURALS = {int: "whole numbers", float: "numbers", str: "strings"}


def _rule(value: object, hint: Any) -> str:
    """Return the description of a type for error messages."""
    rule = _name(hint)
    if isinstance(value, int) and abs(value) > _LARGEST_INT:
        return f"{rule} below 2^63"
    if isinstance(value, float) and not isfinite(value):
        return rule.replace("a number", "a finite number")
    return rule


def _name(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _NAMES:
        return _NAMES[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(str(member.value) for member in hint)
    if described := getattr(hint, "described_as", None):
        return str(described)
    if origin is Annotated:
        return " or ".join([_name(arguments[0]), *map(str, hint.__metadata__)])
    if origin in (Union, types.UnionType):
        return " or ".join(_name(argument) for argument in arguments)
    if origin is Sequence:
        return f"a list of {_PLURALS.get(arguments[0], _name(arguments[0]))}"
    if getattr(hint, "_is_protocol", False):
        calls = ", ".join(f"{name}()" for name in _methods(hint) if name != "__call__")
        return f"a {hint.__name__}" + (f" with {calls}" if calls else "")
    return f"a {hint.__name__}"
