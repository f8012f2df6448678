"""What a user imports, installs and asks for: public names, declared dependencies, one version."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import fedsys
from fedsys.__main__ import main
from fedsys.core.algorithm import Algorithm
from fedsys.training import config

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {
    "PIL": "pillow",
    "hydra": "hydra-core",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Distributions whose name is not that of the module."""


@pytest.mark.parametrize("name", ["fedsys", "fedsys.algorithms", "fedsys.problems"])
def test_every_public_name_can_be_imported(name: str) -> None:
    module = import_module(name)
    assert len(module.__all__) > 10
    assert [public for public in module.__all__ if not hasattr(module, public)] == []


def test_every_algorithm_of_the_package_is_exported_by_fedsys_algorithms() -> None:
    from fedsys import algorithms

    folder = Path(str(algorithms.__file__)).parent
    names = (path.relative_to(REPOSITORY) for path in folder.rglob("*.py"))
    modules = [import_module(".".join(path.with_suffix("").parts)) for path in names]
    found = {
        value.__name__
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Algorithm) and not inspect.isabstract(value)
    }
    public = {name for name in found if not name.startswith("_")}
    assert len(public) > 25
    assert public <= {*algorithms.__all__}


@pytest.mark.parametrize("group", ["algorithm", "problem"])
def test_every_target_of_a_yaml_file_is_a_public_name_of_its_package(group: str) -> None:
    package = import_module(f"fedsys.{group}s")
    texts = [file.read_text() for file in (config.folder() / group).rglob("*.yaml")]
    targets = {content.get("_target_") for content in map(yaml.safe_load, texts)} - {None}
    assert len(targets) > 10
    public = {f"fedsys.{group}s.{name}" for name in package.__all__}
    assert sorted(targets - public) == []


def test_every_imported_distribution_is_declared() -> None:
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    lines = [*PROJECT["dependencies"], *extras]
    declared = {re.split(r"[^\w-]", line)[0].lower() for line in lines}
    imported = set()
    for file in (REPOSITORY / "fedsys").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    others = imported - {*sys.stdlib_module_names, "fedsys"}
    assert "torch" in others
    names = {DISTRIBUTIONS.get(name, name).lower() for name in others}
    assert sorted(names - declared) == []


def test_the_command_prints_the_only_version_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedsys", "--version"])
    main()
    assert capsys.readouterr().out == f"fedsys {fedsys.__version__}\n"
    assert PROJECT["dynamic"] == ["version"]
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation["version"] == fedsys.__version__


def test_make_help_lists_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert "test-torch" in phony[1]
    assert [name for name in phony[1].split() if f"make {name} " not in shown] == []
