"""The running average of iterates, which the theorems of faster-rates-federated-vi.txt speak of."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsys.algorithms.algorithm import State
from fedsys.algorithms.variational import VariationalAlgorithm


@dataclass(frozen=True)
class AveragedState(State):
    """z, and x_o = the mean of x_1, ..., x_t."""

    z: Tensor
    x_o: Tensor


@dataclass(frozen=True)
class AveragedAlgorithm(VariationalAlgorithm[AveragedState]):
    """Returns the average of the iterates as well as the last one; both are evaluated."""

    def solution(self, s: AveragedState) -> Tensor:
        """The last iterate."""
        return s.z

    def outputs(self, s: AveragedState) -> dict[str, Tensor]:
        """The last iterate and the average."""
        return {"": s.z, "average": s.x_o}


def running_mean(mean: Tensor, x: Tensor, step: int) -> Tensor:
    """The mean of x_1, ..., x_{t+1}, from the mean of the first t = `step` of them."""
    return mean + (x - mean) / (step + 1)
