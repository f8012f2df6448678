"""Federated optimisation beyond plain minimisation.

Importing fedsys changes nothing in the process and does not import torch: public names are imported
at first use. `tune_process` switches on the settings that the command line uses.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsys.algorithms import FedAvg, LocalSGDA
    from fedsys.core.algorithm import Algorithm, State
    from fedsys.core.constants import Constants
    from fedsys.core.errors import FedsysError, InputError
    from fedsys.core.periodic import PeriodicAlgorithm
    from fedsys.core.sync import Sync
    from fedsys.problems import (
        BilevelProblem,
        Classification,
        CompositionalProblem,
        DeepAUC,
        MinimaxProblem,
        MinimisationProblem,
        QuadraticGame,
        VariationalProblem,
    )
    from fedsys.report.comparison import Comparison, compare
    from fedsys.system.process import tune_process
    from fedsys.training.api import run
    from fedsys.training.early_stopping import EarlyStopping
    from fedsys.training.result import Result
    from fedsys.training.sweep import sweep
    from fedsys.training.sweep_result import SweepResult
    from fedsys.training.trained_model import TrainedModel, load_model

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "BilevelProblem",
    "Classification",
    "Comparison",
    "CompositionalProblem",
    "Constants",
    "DeepAUC",
    "EarlyStopping",
    "FedAvg",
    "FedsysError",
    "InputError",
    "LocalSGDA",
    "MinimaxProblem",
    "MinimisationProblem",
    "PeriodicAlgorithm",
    "QuadraticGame",
    "Result",
    "State",
    "SweepResult",
    "Sync",
    "TrainedModel",
    "VariationalProblem",
    "compare",
    "load_model",
    "run",
    "sweep",
    "tune_process",
]

_MODULES = {
    "Algorithm": "fedsys.core.algorithm",
    "Comparison": "fedsys.report.comparison",
    "Constants": "fedsys.core.constants",
    "EarlyStopping": "fedsys.training.early_stopping",
    "FedAvg": "fedsys.algorithms",
    "FedsysError": "fedsys.core.errors",
    "InputError": "fedsys.core.errors",
    "LocalSGDA": "fedsys.algorithms",
    "PeriodicAlgorithm": "fedsys.core.periodic",
    "Result": "fedsys.training.result",
    "State": "fedsys.core.algorithm",
    "SweepResult": "fedsys.training.sweep_result",
    "Sync": "fedsys.core.sync",
    "TrainedModel": "fedsys.training.trained_model",
    "compare": "fedsys.report.comparison",
    "load_model": "fedsys.training.trained_model",
    "run": "fedsys.training.api",
    "sweep": "fedsys.training.sweep",
    "tune_process": "fedsys.system.process",
}
"""The module of each public name; names that are not listed are problems."""


_RENAMED = {"OperatorProblem": "fedsys.VariationalProblem; its argument start is now z"}


def __getattr__(name: str) -> Any:
    """Import a public name or a submodule at first use.

    Importing torch takes seconds. Before that, a process of the command line ties itself to its
    launcher and makes sure that Ctrl-C does not end in a traceback.
    """
    if name in __all__:
        value = getattr(import_module(_MODULES.get(name, "fedsys.problems")), name)
    elif not name.startswith("_") and find_spec(f"fedsys.{name}") is not None:
        return import_module(f"fedsys.{name}")
    elif name in _RENAMED:
        raise AttributeError(f"fedsys.{name} is now {_RENAMED[name]}")
    else:
        raise AttributeError(f"module 'fedsys' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
