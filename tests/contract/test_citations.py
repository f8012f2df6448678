"""Every algorithm cites its paper, and no two states have one name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fedsys
from fedsys.algorithms import Algorithm, known_algorithms

YEAR = re.compile(r"\b(19|20)\d\d\b")
PLACE = re.compile(
    r"Algorithm \d|eq\. \(|arXiv:|ICML|NeurIPS|AISTATS|ICLR|AAAI|MLSys|FAccT|\(\d{4}\)"
)
PAPER = re.compile(r"\b(adafgda|fedbio|localscgdam|proxskip-vip|faster-rates-federated-vi)\.txt")


@pytest.mark.parametrize("algorithm", known_algorithms(), ids=lambda a: a.__name__)
def test_the_docstring_of_an_algorithm_cites_its_paper(
    algorithm: type[Algorithm[Any, Any]],
) -> None:
    text = vars(algorithm)["__doc__"] or ""
    assert YEAR.search(text)
    assert PLACE.search(text)


def test_no_state_class_has_the_name_of_another() -> None:
    files = sorted((Path(fedsys.__file__).parent / "algorithms").rglob("*.py"))
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_file_of_the_algorithms_and_their_theory_names_a_text_file_for_a_paper() -> None:
    package = Path(fedsys.__file__).parent
    for folder in ("algorithms", "theory", "core"):
        for file in (package / folder).rglob("*.py"):
            assert not PAPER.search(file.read_text()), file
