"""Python objects as plain data: what config.yaml says about a run that a script started."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Set, Sized
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from inspect import signature
from math import prod
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsys.communication import Communicator

_MOST_VALUES = 32
"""Longer arrays and lists are described by their shape and a checksum."""
_MOST_BYTES = 2**28
_DEEPEST = 12
_PACKAGES = (
    "fedsys.algorithms", "fedsys.problems", "fedsys.communication", "fedsys.data", "fedsys.models",
)  # fmt: skip


def described(value: Any, depth: int = 0) -> Any:
    """Return a value as None, booleans, numbers, strings, lists and dictionaries.

    An object is described by its class (`_target_`) and its fields, a function by its qualified
    name, an array of more than 32 numbers and the weights of a module by a checksum; that of an
    array above 256 MB is of a regular sample of its numbers.
    """
    if isinstance(value, Enum | np.generic):  # before numbers, of which some are subclasses
        return described(value.value if isinstance(value, Enum) else value.item(), depth + 1)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value.replace("${", "$ {")  # no interpolation for those who read the file
    if isinstance(value, Tensor | np.ndarray):
        return _array(value)
    if depth > _DEEPEST:
        return {"_target_": qualified_name(type(value))}
    if isinstance(value, Mapping):
        return {str(key): described(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, Set):
        return sorted((described(inner, depth + 1) for inner in value), key=repr)
    if isinstance(value, list | tuple | range):  # others may load what is not hosted here
        return _sequence([described(inner, depth + 1) for inner in value])
    return _object(value, depth)


def qualified_name(value: Any) -> str:
    """Return `module.name` of a class or function, by the package that exports it if one does."""
    name = getattr(value, "__qualname__", type(value).__qualname__)
    module = getattr(value, "__module__", None) or "builtins"
    for package in _PACKAGES:
        if module.startswith(package) and getattr(import_module(package), name, None) is value:
            return f"{package}.{name}"
    return f"{module}.{name}"


def _object(value: Any, depth: int) -> Any:
    if isinstance(value, type):
        return qualified_name(value)
    if isinstance(value, PurePath | torch.dtype | torch.device):
        return str(value)
    if isinstance(value, partial):
        given = {"args": value.args, **value.keywords}
        return {"_target_": qualified_name(value.func), **described(given, depth + 1)}
    target = {"_target_": qualified_name(type(value))}
    if is_dataclass(value):
        own = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return {**target, **described(own, depth + 1)}
    if isinstance(value, Communicator):
        names = set(signature(type(value).__init__).parameters) - {*value.options}
        return {**target, **described(value.options), **_attributes(value, names)}
    if isinstance(value, nn.Module):
        weights = [one for one in value.state_dict().values() if isinstance(one, Tensor)]
        return {**target, "sha256": _checksum(weights)}
    if callable(value) and hasattr(value, "__qualname__"):
        return qualified_name(value)
    size = {"length": len(value)} if isinstance(value, Sized) else {}
    return {**target, **size, **_attributes(value, getattr(value, "__dict__", {}))}


def _attributes(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return those of the public attributes that are numbers, strings or arrays."""
    own = {name: getattr(value, name, None) for name in sorted(names) if name[0] != "_"}
    return {name: described(inner) for name, inner in own.items() if _is_plain(inner)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | Tensor | np.ndarray | np.generic)


def _array(value: Any) -> Any:
    shape, is_plain = tuple(value.shape), _has_plain_numbers(value)
    if prod(shape) <= _MOST_VALUES and is_plain:
        return value.tolist()
    target = {"_target_": qualified_name(type(value)), "shape": list(shape)}
    found = {**target, "dtype": str(value.dtype)}
    return {**found, "sha256": _checksum([value])} if is_plain else found


def _has_plain_numbers(value: Any) -> bool:
    """Return whether the elements are booleans, real numbers or strings, stored one by one."""
    if isinstance(value, Tensor):
        return value.layout == torch.strided and not value.is_complex()
    return value.dtype.kind in "biufU"


def _sequence(values: list[Any]) -> Any:
    if len(values) <= _MOST_VALUES:
        return values
    text = json.dumps(values, sort_keys=True).encode()
    return {"length": len(values), "sha256": _short(hashlib.sha256(text))}


def _checksum(arrays: Iterable[Any]) -> str:
    """Return the checksum of the bytes of some arrays."""
    found = hashlib.sha256()
    for one in arrays:
        flat = one.detach().reshape(-1) if isinstance(one, Tensor) else one.reshape(-1)
        sample = flat[:: 1 + one.nbytes // _MOST_BYTES]
        if isinstance(sample, Tensor):  # as bytes, because numpy has no bfloat16
            sample = sample.cpu().contiguous().view(torch.uint8).numpy()
        found.update(np.ascontiguousarray(sample).view(np.uint8).data)
    return _short(found)


def _short(checksum: Any) -> str:
    return str(checksum.hexdigest()[:16])
