"""Problems, and the oracles by which algorithms ask them."""

from fedsys.problems.auc import DeepAUC
from fedsys.problems.classification import Classification
from fedsys.problems.constants import Constants, Theory
from fedsys.problems.functions import MinimaxProblem, MinimisationProblem, OperatorProblem
from fedsys.problems.oracle import (
    KINDS,
    Draw,
    Minimax,
    Minimisation,
    Oracle,
    Problem,
    Site,
    Variational,
)
from fedsys.problems.quadratic_game import QuadraticGame

__all__ = [
    "KINDS",
    "Classification",
    "Constants",
    "DeepAUC",
    "Draw",
    "Minimax",
    "MinimaxProblem",
    "Minimisation",
    "MinimisationProblem",
    "OperatorProblem",
    "Oracle",
    "Problem",
    "QuadraticGame",
    "Site",
    "Theory",
    "Variational",
]
