"""Problems, and the oracles through which algorithms access them."""

from fedsys.problems.bilevel.hyper_cleaning import HyperCleaning
from fedsys.problems.bilevel.hypergradient import (
    ExactHypergradient,
    Hypergradient,
    NeumannHypergradient,
)
from fedsys.problems.bilevel.quadratic_bilevel import QuadraticBilevel
from fedsys.problems.bilevel.shared_quadratic_bilevel import SharedQuadraticBilevel
from fedsys.problems.custom import (
    BilevelProblem,
    CompositionalProblem,
    MinimaxProblem,
    MinimisationProblem,
    VariationalProblem,
)
from fedsys.problems.fairness.group_fair import GroupFair
from fedsys.problems.games.bounded_saddle import LogCoshSaddle, SkewSaddle
from fedsys.problems.games.composite_saddle import CompositeSaddle
from fedsys.problems.games.matrix_game import PolicemanBurglar
from fedsys.problems.games.quadratic_game import QuadraticGame
from fedsys.problems.games.robust_least_squares import RobustLeastSquares
from fedsys.problems.games.synthetic_saddle import SyntheticSaddle
from fedsys.problems.games.toys import BilinearGame, HeterogeneousToy, TwoPoints
from fedsys.problems.networks.auc import DeepAUC
from fedsys.problems.networks.binary import BinaryClassification
from fedsys.problems.networks.classification import Classification
from fedsys.problems.networks.compositional_auc import CompositionalAUC
from fedsys.problems.networks.ratio_monitor import MonitoredRatioLoss
from fedsys.problems.networks.robust_network import RobustNetwork

__all__ = [
    "BilevelProblem",
    "BilinearGame",
    "BinaryClassification",
    "Classification",
    "CompositeSaddle",
    "CompositionalAUC",
    "CompositionalProblem",
    "DeepAUC",
    "ExactHypergradient",
    "GroupFair",
    "HeterogeneousToy",
    "HyperCleaning",
    "Hypergradient",
    "LogCoshSaddle",
    "MinimaxProblem",
    "MinimisationProblem",
    "MonitoredRatioLoss",
    "NeumannHypergradient",
    "PolicemanBurglar",
    "QuadraticBilevel",
    "QuadraticGame",
    "RobustLeastSquares",
    "RobustNetwork",
    "SharedQuadraticBilevel",
    "SkewSaddle",
    "SyntheticSaddle",
    "TwoPoints",
    "VariationalProblem",
]
