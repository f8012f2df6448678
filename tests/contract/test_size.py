"""A class, a function and a file of the package are small enough to be read at once."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fedsys
from fedsys.core import algorithm, optional_oracles, oracles

PACKAGE = Path(fedsys.__file__).parent
METHODS, FUNCTION_LINES, FILE_LINES = 12, 60, 300

Function = ast.FunctionDef | ast.AsyncFunctionDef


def files() -> list[Path]:
    """The Python files of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def place(file: Path, node: ast.AST) -> str:
    """Where a definition starts, as path:line."""
    return f"{file.relative_to(PACKAGE.parent)}:{getattr(node, 'lineno', 1)}"


def definitions(kind: type | tuple[type, ...]) -> Iterator[tuple[Path, ast.AST]]:
    """Every class or function of the package, nested ones as well."""
    for file in files():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, kind):
                yield file, node


def classes() -> Iterator[type]:
    """Every class at the top of a module of the package."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "fedsys."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and value.__module__ == module.name:
                yield value


def public_methods(kind: type) -> set[str]:
    """The public methods and properties that a class has or inherits inside the package.

    The oracle of a game satisfies several protocols of fedsys.core at once. What a protocol
    declares counts for the protocol and not again for every class that satisfies it.
    """
    found = {
        name
        for base in kind.__mro__
        if base.__module__.partition(".")[0] == "fedsys"
        for name, value in vars(base).items()
        if not name.startswith("_") and _is_method(value)
    }
    return found if _is_protocol(kind) else found - _declared_by_oracles()


@cache
def _declared_by_oracles() -> frozenset[str]:
    modules = (oracles, optional_oracles, algorithm)
    values = [value for module in modules for value in vars(module).values()]
    return frozenset().union(*map(public_methods, filter(_is_protocol, values)))


def _is_protocol(value: object) -> bool:
    return bool(getattr(value, "_is_protocol", False))


def _is_method(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, classmethod | staticmethod | property)


def test_no_class_has_more_than_twelve_public_methods() -> None:
    counts = {f"{k.__module__}.{k.__qualname__}": len(public_methods(k)) for k in classes()}
    assert {name: count for name, count in counts.items() if count > METHODS} == {}


def test_no_function_is_longer_than_sixty_lines() -> None:
    lengths = {
        f"{place(file, node)} {node.name}": node.end_lineno - node.lineno + 1  # type: ignore[attr-defined]
        for file, node in definitions((ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES} == {}


def test_no_file_is_longer_than_three_hundred_lines() -> None:
    lengths = {
        str(file.relative_to(PACKAGE.parent)): len(file.read_text().splitlines())
        for file in files()
    }
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES} == {}


def test_no_class_name_is_used_twice() -> None:
    places = defaultdict(list)
    for file, node in definitions(ast.ClassDef):
        places[node.name].append(place(file, node))  # type: ignore[attr-defined]
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_every_public_class_and_function_has_a_docstring() -> None:
    assert sorted(where for file in files() for where in _undocumented(file)) == []


def _undocumented(file: Path) -> Iterator[str]:
    """The public definitions of a file without a docstring; a method may be an override."""
    pending: list[ast.AST] = [ast.parse(file.read_text())]
    while pending:
        parent = pending.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.If | ast.Try | ast.With):
                pending.append(node)
            if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
                continue
            if isinstance(node, ast.ClassDef):
                pending.append(node)
            if ast.get_docstring(node) is None and not _is_exempt(node):
                yield f"{place(file, node)} {node.name}"


def _is_exempt(node: ast.ClassDef | Function) -> bool:
    """Whether a definition is an override or one of several overloads, documented elsewhere."""
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(names & {"override", "overload", "setter"})
