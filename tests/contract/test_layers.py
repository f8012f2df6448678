"""One direction, no cycles: a module imports only from those before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fedsys

ROOT = Path(fedsys.__file__).parent
LAYERS = [
    {"system"},
    {"core"},
    {"communication"},
    {"distributed"},
    {"data"},
    {"models"},
    {"clients"},
    {"problems"},
    {"theory"},
    {"algorithms"},
    {"training"},
    {"report"},
    {"cli", "launch", "table", "__init__", "__main__"},
    {"reproduce"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(nodes: list[ast.stmt] | list[ast.AST]) -> Iterator[str]:
    """The modules of fedsys that these statements import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def top_level(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run, or that a type checker reads, when a module is imported."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            for inner in ("body", "orelse", "finalbody"):
                yield from top_level(getattr(statement, inner, []))


def part(module: str) -> str:
    """The first name below fedsys: a folder, or a file beside the folders."""
    return (*module.split("."), "__init__")[1]


def test_every_part_of_the_package_has_its_place() -> None:
    assert {part(module) for module in MODULES} <= LEVEL.keys()


def upward_imports(module: str, source: str) -> list[str]:
    """The imports of later layers anywhere in `source`: also in functions and for types only."""
    found = imports(list(ast.walk(ast.parse(source))))
    return [imported for imported in found if LEVEL[part(imported)] > LEVEL[part(module)]]


@pytest.mark.parametrize("module", list(MODULES))
def test_a_module_never_imports_upwards(module: str) -> None:
    assert upward_imports(module, MODULES[module].read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from fedsys.training.runner import Runner",
        "import fedsys.training.runner",
        "if TYPE_CHECKING:\n    from fedsys.training.runner import Runner",
        "if typing.TYPE_CHECKING:\n    import fedsys.training.runner as runner",
        "def f():\n    from fedsys.training import runner",
    ],
)
def test_imports_for_types_only_and_inside_functions_count_as_imports(source: str) -> None:
    assert upward_imports("fedsys.core.sync", source) == ["fedsys.training.runner"]
    assert upward_imports("fedsys.cli", source) == []


def test_no_import_is_relative() -> None:
    for path in MODULES.values():
        nodes = ast.walk(ast.parse(path.read_text()))
        assert not any(isinstance(node, ast.ImportFrom) and node.level for node in nodes), path


def test_a_cycle_may_not_hide_behind_type_checking() -> None:
    source = "if TYPE_CHECKING:\n    from fedsys.core.traffic import Traffic"
    assert list(imports(list(top_level(ast.parse(source).body)))) == ["fedsys.core.traffic"]


def test_there_is_no_cycle() -> None:
    graph = {
        module: set(imports(list(top_level(ast.parse(path.read_text()).body))))
        for module, path in MODULES.items()
    }
    assert sum(map(len, graph.values())) > 50
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a cycle: {' -> '.join(error.args[1])}")
