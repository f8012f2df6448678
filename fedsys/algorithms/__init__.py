"""One file per method; each reads like its pseudocode."""

from fedsys.algorithms.adaptive import AdaBelief, Adam, DiagonalRule, Identity
from fedsys.algorithms.algorithm import Algorithm, PeriodicAlgorithm, State
from fedsys.algorithms.cdma import CDMA
from fedsys.algorithms.centralised import EG, GDA
from fedsys.algorithms.coda import CoDA
from fedsys.algorithms.codasca import CODASCA
from fedsys.algorithms.fcfl import FCFL
from fedsys.algorithms.fedavg import FedAvg
from fedsys.algorithms.fedbio import FedBiO, FedBiOAcc
from fedsys.algorithms.fedgda_gt import FedGDAGT
from fedsys.algorithms.fedminmax import FedMinMax
from fedsys.algorithms.fednest import FedNest
from fedsys.algorithms.fedprox import FedProx
from fedsys.algorithms.fedreg import FedReg
from fedsys.algorithms.fgda import FGDA, AdaFGDA
from fedsys.algorithms.lde import LDE
from fedsys.algorithms.lesgd import LESGD
from fedsys.algorithms.lippax import LIPPAX, SLIPPAX
from fedsys.algorithms.local_seg import LocalSEG
from fedsys.algorithms.local_sgda import LocalSGDA
from fedsys.algorithms.local_sgda_plus import LocalSGDAPlus
from fedsys.algorithms.localscgdam import LocalSCGDAM, LocalSGDAM
from fedsys.algorithms.localsgdm import LocalSGDM
from fedsys.algorithms.lsgd import LSGD
from fedsys.algorithms.momentum_local_sgda import MomentumLocalSGDA, MomentumLocalSGDAPlus
from fedsys.algorithms.proxskip import ProxSkip, ProxSkipAverage, ProxSkipLSVRGDA
from fedsys.algorithms.rates import Decreasing
from fedsys.algorithms.sagda import SAGDA
from fedsys.algorithms.scaffold import Scaffold
from fedsys.algorithms.stages import StagedAlgorithm

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
    "SAGDA",
    "SLIPPAX",
    "AdaBelief",
    "AdaFGDA",
    "Adam",
    "Algorithm",
    "CoDA",
    "Decreasing",
    "DiagonalRule",
    "FedAvg",
    "FedBiO",
    "FedBiOAcc",
    "FedGDAGT",
    "FedMinMax",
    "FedNest",
    "FedProx",
    "FedReg",
    "Identity",
    "LocalSCGDAM",
    "LocalSEG",
    "LocalSGDA",
    "LocalSGDAM",
    "LocalSGDAPlus",
    "LocalSGDM",
    "MomentumLocalSGDA",
    "MomentumLocalSGDAPlus",
    "PeriodicAlgorithm",
    "ProxSkip",
    "ProxSkipAverage",
    "ProxSkipLSVRGDA",
    "Scaffold",
    "StagedAlgorithm",
    "State",
]
