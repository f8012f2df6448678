"""Problems defined by a user's functions."""

from fedsys.problems.custom.bilevel import BilevelProblem
from fedsys.problems.custom.compositional import CompositionalProblem
from fedsys.problems.custom.minimisation import MinimisationProblem
from fedsys.problems.custom.variational import MinimaxProblem, VariationalProblem

__all__ = [
    "BilevelProblem",
    "CompositionalProblem",
    "MinimaxProblem",
    "MinimisationProblem",
    "VariationalProblem",
]
