"""One file per method; each reads like its pseudocode."""

from fedsys.algorithms.algorithm import Algorithm, PeriodicAlgorithm, State
from fedsys.algorithms.centralised import EG, GDA
from fedsys.algorithms.fcfl import FCFL
from fedsys.algorithms.fedavg import FedAvg
from fedsys.algorithms.fedbio import FedBiO, FedBiOAcc
from fedsys.algorithms.fedgda_gt import FedGDAGT
from fedsys.algorithms.fedminmax import FedMinMax
from fedsys.algorithms.fedreg import FedReg
from fedsys.algorithms.lde import LDE
from fedsys.algorithms.lesgd import LESGD
from fedsys.algorithms.lippax import LIPPAX, SLIPPAX
from fedsys.algorithms.local_seg import LocalSEG
from fedsys.algorithms.local_sgda import LocalSGDA
from fedsys.algorithms.lsgd import LSGD
from fedsys.algorithms.proxskip import ProxSkip, ProxSkipLSVRGDA

__all__ = [
    "EG",
    "FCFL",
    "GDA",
    "LDE",
    "LESGD",
    "LIPPAX",
    "LSGD",
    "SLIPPAX",
    "Algorithm",
    "FedAvg",
    "FedBiO",
    "FedBiOAcc",
    "FedGDAGT",
    "FedMinMax",
    "FedReg",
    "LocalSEG",
    "LocalSGDA",
    "PeriodicAlgorithm",
    "ProxSkip",
    "ProxSkipLSVRGDA",
    "State",
]
