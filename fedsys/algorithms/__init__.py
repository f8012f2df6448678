"""One file per method; each reads like its pseudocode."""

from fedsys.algorithms.algorithm import Algorithm, PeriodicAlgorithm, State
from fedsys.algorithms.centralised import EG, GDA
from fedsys.algorithms.coda import CoDA
from fedsys.algorithms.fedavg import FedAvg
from fedsys.algorithms.fedgda_gt import FedGDAGT
from fedsys.algorithms.fedprox import FedProx
from fedsys.algorithms.lde import LDE
from fedsys.algorithms.lesgd import LESGD
from fedsys.algorithms.lippax import LIPPAX, SLIPPAX
from fedsys.algorithms.local_seg import LocalSEG
from fedsys.algorithms.local_sgda import LocalSGDA
from fedsys.algorithms.localscgdam import LocalSCGDAM, LocalSGDAM
from fedsys.algorithms.localsgdm import LocalSGDM
from fedsys.algorithms.lsgd import LSGD
from fedsys.algorithms.proxskip import ProxSkip, ProxSkipLSVRGDA
from fedsys.algorithms.scaffold import Scaffold
from fedsys.algorithms.stages import StagedAlgorithm

__all__ = [
    "EG",
    "GDA",
    "LDE",
    "LESGD",
    "LIPPAX",
    "LSGD",
    "SLIPPAX",
    "Algorithm",
    "CoDA",
    "FedAvg",
    "FedGDAGT",
    "FedProx",
    "LocalSCGDAM",
    "LocalSEG",
    "LocalSGDA",
    "LocalSGDAM",
    "LocalSGDM",
    "PeriodicAlgorithm",
    "ProxSkip",
    "ProxSkipLSVRGDA",
    "Scaffold",
    "StagedAlgorithm",
    "State",
]
