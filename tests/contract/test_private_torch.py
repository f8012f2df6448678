"""Private parts of torch are used in fedsys/distributed/torch_internals.py only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedsys

PACKAGE = Path(fedsys.__file__).parent
ADAPTER = PACKAGE / "distributed" / "torch_internals.py"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != ADAPTER)
UNSTABLE = (
    "torch.distributed.distributed_c10d",
    "torch.distributed.elastic",
    "torch.distributed.launcher",
    "torch.distributed.run",
)
"""Modules whose names are public, but which fedsys uses in ways that torch does not document."""


def is_private(name: str) -> bool:
    """Whether a dotted name of torch is private or belongs to an unstable module."""
    parts = name.split(".")
    if parts[0] != "torch":
        return False
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return hidden or any(name == one or name.startswith(f"{one}.") for one in UNSTABLE)


def imported(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """The local name, the dotted name and the line of everything that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                full = alias.name if alias.asname else local
                yield local, full, node.lineno
                yield "", alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}", node.lineno


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """The full name of a chain of attributes that begins with an imported name, else nothing."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value, names)
        return owner and f"{owner}.{node.attr}"
    return ""


def own_names(source: str) -> set[str]:
    """The names that a file defines: attributes that it assigns, functions, classes, fields."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def private_access(source: str, known: set[str]) -> list[str]:
    """What a file uses of torch's private parts, with lines.

    The type of an object is not known here, so an attribute with a leading underscore that no file
    of the package defines counts as well, unless its owner is a module of another library.
    """
    tree = ast.parse(source)
    found = [f"{line}: {name}" for _, name, line in imported(tree) if is_private(name)]
    names = {local: name for local, name, _ in imported(tree) if local}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        name = dotted(node, names)
        hidden = node.attr.startswith("_") and not node.attr.startswith("__")
        if is_private(name) or (hidden and not name and node.attr not in known):
            found.append(f"{node.lineno}: {name or node.attr}")
    return found


@pytest.fixture(scope="module")
def known() -> set[str]:
    return set().union(*(own_names(path.read_text()) for path in FILES))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_adapter_uses_private_parts_of_torch(path: Path, known: set[str]) -> None:
    assert private_access(path.read_text(), known) == []


@pytest.mark.parametrize(
    "source",
    [
        "from torch.distributed.elastic.agent.server.api import WorkerGroup",
        "import torch.distributed.elastic.rendezvous as rendezvous",
        "from torch.distributed import run as torchrun",
        "from torch.distributed import distributed_c10d",
        "from torch._dynamo import config",
        "import torch._C",
        "import torch\ntorch._C._log_api_usage_once('x')",
        "import torch\ndef f():\n    return torch.distributed.distributed_c10d",
        "import torch.distributed as dist\ndist._store_based_barrier()",
        "def f(agent):\n    agent._pcontext.close()",
        "class Agent(Base):\n    def f(self):\n        self._remaining_restarts -= 1",
    ],
)
def test_the_search_finds_private_access(source: str) -> None:
    assert private_access(source, set()) != []


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed as dist\ndist.TCPStore",
        "import os\nos._exit(1)",
        "import torch\ntorch.__version__",
        "from torch import Tensor\nTensor.__add__",
    ],
)
def test_the_search_accepts_public_names(source: str) -> None:
    assert private_access(source, set()) == []
