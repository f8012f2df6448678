"""The algorithms: one file per paper, each of which mirrors the pseudocode."""

import inspect
from typing import Any

from fedsys.algorithms.averaged import Averaged, ExtrapolatingAlgorithm
from fedsys.algorithms.bilevel.fedbio import FedBiO, FedBiOAcc
from fedsys.algorithms.bilevel.fednest_bilevel import FedNestBilevel
from fedsys.algorithms.compositional.localscgdam import LocalSCGDAM, LocalSGDAM
from fedsys.algorithms.fairness.fcfl import FCFL
from fedsys.algorithms.fairness.fedminmax import FedMinMax
from fedsys.algorithms.fairness.fedreg import FedReg
from fedsys.algorithms.minimax.adaptive import AdaBelief, Adam, DiagonalRule, Identity
from fedsys.algorithms.minimax.cdma import CDMA
from fedsys.algorithms.minimax.coda import CoDA
from fedsys.algorithms.minimax.codasca import CODASCA
from fedsys.algorithms.minimax.fednest import FedNest
from fedsys.algorithms.minimax.fgda import FGDA, AdaFGDA
from fedsys.algorithms.minimax.local_sgda import LocalSGDA
from fedsys.algorithms.minimax.local_sgda_plus import LocalSGDAPlus
from fedsys.algorithms.minimax.momentum_local_sgda import MomentumLocalSGDA, MomentumLocalSGDAPlus
from fedsys.algorithms.minimax.sagda import SAGDA
from fedsys.algorithms.minimisation.fedavg import FedAvg
from fedsys.algorithms.minimisation.fedprox import FedProx
from fedsys.algorithms.minimisation.localsgdm import LocalSGDM
from fedsys.algorithms.minimisation.localsgdm_rl import LocalSGDMRL
from fedsys.algorithms.minimisation.scaffold import Scaffold
from fedsys.algorithms.variational.centralised import EG, GDA
from fedsys.algorithms.variational.estimators import SGDA, Estimator, FullOperator, Quantised
from fedsys.algorithms.variational.fedgda_gt import FedGDAGT
from fedsys.algorithms.variational.lde import LDE
from fedsys.algorithms.variational.lesgd import LESGD
from fedsys.algorithms.variational.lippax import LIPPAX, SLIPPAX
from fedsys.algorithms.variational.local_seg import LocalSEG
from fedsys.algorithms.variational.lsgd import LSGD
from fedsys.algorithms.variational.proxskip import ProxSkip, ProxSkipLSVRGDA
from fedsys.algorithms.variational.variance_reduced import LSVRG, SAGA
from fedsys.core.algorithm import Algorithm, State
from fedsys.core.periodic import PeriodicAlgorithm, StagedAlgorithm
from fedsys.core.schedules import (
    THEORY,
    Constant,
    Cosine,
    Decreasing,
    FromTheory,
    Schedule,
    Staged,
    Warmup,
)


def known_algorithms() -> list[type[Algorithm[Any, Any]]]:
    """Return the algorithms of this package that can be run, by name."""
    exported = (globals()[name] for name in sorted(__all__))
    classes = [item for item in exported if isinstance(item, type) and issubclass(item, Algorithm)]
    return [item for item in classes if not inspect.isabstract(item) and item is not Averaged]


def __getattr__(name: str) -> object:
    if name == "ProxSkipAverage":
        raise AttributeError("ProxSkipAverage is now ProxSkip(averages=True)")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CDMA",
    "CODASCA",
    "EG",
    "FCFL",
    "FGDA",
    "GDA",
    "LDE",
    "LESGD",
    "LIPPAX",
    "LSGD",
    "LSVRG",
    "SAGA",
    "SAGDA",
    "SGDA",
    "SLIPPAX",
    "THEORY",
    "AdaBelief",
    "AdaFGDA",
    "Adam",
    "Algorithm",
    "Averaged",
    "CoDA",
    "Constant",
    "Cosine",
    "Decreasing",
    "DiagonalRule",
    "Estimator",
    "ExtrapolatingAlgorithm",
    "FedAvg",
    "FedBiO",
    "FedBiOAcc",
    "FedGDAGT",
    "FedMinMax",
    "FedNest",
    "FedNestBilevel",
    "FedProx",
    "FedReg",
    "FromTheory",
    "FullOperator",
    "Identity",
    "LocalSCGDAM",
    "LocalSEG",
    "LocalSGDA",
    "LocalSGDAM",
    "LocalSGDAPlus",
    "LocalSGDM",
    "LocalSGDMRL",
    "MomentumLocalSGDA",
    "MomentumLocalSGDAPlus",
    "PeriodicAlgorithm",
    "ProxSkip",
    "ProxSkipLSVRGDA",
    "Quantised",
    "Scaffold",
    "Schedule",
    "Staged",
    "StagedAlgorithm",
    "State",
    "Warmup",
    "known_algorithms",
]
