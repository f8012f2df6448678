"""Problems, and the oracles by which algorithms ask them."""

from fedsys.problems.auc import DeepAUC
from fedsys.problems.bilevel import BilevelProblem
from fedsys.problems.binary import BinaryClassification
from fedsys.problems.bounded_saddle import LogCoshSaddle, SkewSaddle
from fedsys.problems.classification import Classification
from fedsys.problems.composite_saddle import CompositeSaddle
from fedsys.problems.compositional_auc import CompositionalAUC
from fedsys.problems.constants import Constants, Theory
from fedsys.problems.functions import (
    CompositionalProblem,
    MinimaxProblem,
    MinimisationProblem,
    OperatorProblem,
)
from fedsys.problems.group_fair import GroupFair
from fedsys.problems.hyper_cleaning import HyperCleaning
from fedsys.problems.hypergradient import (
    ExactHypergradient,
    Hypergradient,
    NeumannHypergradient,
)
from fedsys.problems.matrix_game import PolicemanBurglar
from fedsys.problems.oracle import (
    KINDS,
    Bilevel,
    Compositional,
    Draw,
    Grouped,
    Minimax,
    Minimisation,
    Oracle,
    Problem,
    Reporting,
    Variational,
)
from fedsys.problems.quadratic_bilevel import QuadraticBilevel
from fedsys.problems.quadratic_game import QuadraticGame
from fedsys.problems.robust_least_squares import RobustLeastSquares
from fedsys.problems.robust_network import RobustNetwork
from fedsys.problems.site import Site
from fedsys.problems.synthetic_saddle import SyntheticSaddle
from fedsys.problems.toys import BilinearGame, HeterogeneousToy, TwoPoints

__all__ = [
    "KINDS",
    "Bilevel",
    "BilevelProblem",
    "BilinearGame",
    "BinaryClassification",
    "Classification",
    "CompositeSaddle",
    "Compositional",
    "CompositionalAUC",
    "CompositionalProblem",
    "Constants",
    "DeepAUC",
    "Draw",
    "ExactHypergradient",
    "GroupFair",
    "Grouped",
    "HeterogeneousToy",
    "HyperCleaning",
    "Hypergradient",
    "LogCoshSaddle",
    "Minimax",
    "MinimaxProblem",
    "Minimisation",
    "MinimisationProblem",
    "NeumannHypergradient",
    "OperatorProblem",
    "Oracle",
    "PolicemanBurglar",
    "Problem",
    "QuadraticBilevel",
    "QuadraticGame",
    "Reporting",
    "RobustLeastSquares",
    "RobustNetwork",
    "Site",
    "SkewSaddle",
    "SyntheticSaddle",
    "Theory",
    "TwoPoints",
    "Variational",
]
