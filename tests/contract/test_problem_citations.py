"""Every problem cites its paper or is listed as having none; every experiment cites its paper."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from hydra.utils import get_class

REPOSITORY = Path(__file__).resolve().parents[2]
PROBLEMS = REPOSITORY / "conf" / "problem"
EXPERIMENTS = REPOSITORY / "conf" / "experiment"

IDENTIFIER = re.compile(r"arXiv:\d{4}\.\d{5}\b|doi:10\.\d{4,}/\S+")

TITLES = {
    "arXiv:1810.10667": "Truncated Back-propagation for Bilevel Optimization",
    "arXiv:2008.06217": "Addressing Class Imbalance in Federated Learning",
    "arXiv:2205.01608": (
        "Local Stochastic Bilevel Optimization with Momentum-Based Variance Reduction"
    ),
    "arXiv:2211.07303": "Adaptive Federated Minimax Optimization with Lower Complexities",
    "arXiv:2304.10101": "Federated Compositional Deep AUC Maximization",
    "arXiv:2306.05100": (
        "Communication-Efficient Gradient Descent-Accent Methods for Distributed Variational "
        "Inequalities: Unified Analysis and Local Updates"
    ),
    "arXiv:2602.09164": "Faster Rates For Federated Variational Inequalities",
}

WITHOUT_A_PAPER = {
    "bilinear",
    "classification",
    "quadratic_bilevel",
    "shared_quadratic_bilevel",
}
"""Problems of no particular paper; their docstrings say so."""


def names(folder: Path) -> list[str]:
    files = folder.rglob("*.yaml")
    return sorted(str(file.relative_to(folder).with_suffix("")) for file in files)


def target(name: str) -> str:
    """The class of a problem, or of the problem that it is a preset of."""
    content = yaml.safe_load((PROBLEMS / f"{name}.yaml").read_text())
    return content.get("_target_") or target(content["defaults"][0])


def docstrings(name: str) -> tuple[str, str]:
    """Those of the problem's class and of its module, each on one line."""
    problem = get_class(target(name))
    texts = (vars(problem)["__doc__"] or "", sys.modules[problem.__module__].__doc__ or "")
    first, second = (" ".join(text.split()) for text in texts)
    return first, second


@pytest.mark.parametrize("name", [name for name in names(PROBLEMS) if name not in WITHOUT_A_PAPER])
def test_the_docstring_of_a_problem_cites_its_paper(name: str) -> None:
    of_class, of_module = docstrings(name)
    cited = set(IDENTIFIER.findall(of_class))
    assert cited
    # The class has the short form of the citation, its module the title.
    titles = {identifier: TITLES.get(identifier, identifier) for identifier in cited}
    assert [i for i, title in titles.items() if not (i in of_module and title in of_module)] == []


@pytest.mark.parametrize("name", sorted(WITHOUT_A_PAPER))
def test_the_docstring_of_a_problem_without_a_paper_says_so(name: str) -> None:
    texts = docstrings(name)
    assert not IDENTIFIER.search(texts[0])
    assert any(re.search(r"comes from no (particular )?paper", text) for text in texts)


@pytest.mark.parametrize("name", names(EXPERIMENTS))
def test_the_comment_of_an_experiment_cites_its_paper(name: str) -> None:
    lines = (EXPERIMENTS / f"{name}.yaml").read_text().splitlines()
    assert IDENTIFIER.search(" ".join(line for line in lines if line.startswith("#")))
