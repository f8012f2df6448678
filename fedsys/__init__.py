"""Federated optimisation beyond plain minimisation."""

import fedsys.huge_pages
import fedsys.quiet  # noqa: F401  both before torch
from fedsys.algorithms import Algorithm, FedAvg, LocalSGDA, PeriodicAlgorithm, State
from fedsys.errors import FedsysError, InputError
from fedsys.problems import (
    Classification,
    CompositionalProblem,
    DeepAUC,
    MinimaxProblem,
    MinimisationProblem,
    OperatorProblem,
    QuadraticGame,
)
from fedsys.runtime.api import run
from fedsys.runtime.runner import Result

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Classification",
    "CompositionalProblem",
    "DeepAUC",
    "FedAvg",
    "FedsysError",
    "InputError",
    "LocalSGDA",
    "MinimaxProblem",
    "MinimisationProblem",
    "OperatorProblem",
    "PeriodicAlgorithm",
    "QuadraticGame",
    "Result",
    "State",
    "run",
]
