"""One file per method; each reads like its pseudocode."""

from fedsys.algorithms.algorithm import Algorithm, PeriodicAlgorithm, State
from fedsys.algorithms.fedavg import FedAvg
from fedsys.algorithms.local_sgda import LocalSGDA

__all__ = ["Algorithm", "FedAvg", "LocalSGDA", "PeriodicAlgorithm", "State"]
