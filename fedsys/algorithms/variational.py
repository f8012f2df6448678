"""What the periodic methods for operators share: one step size, which a theorem may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsys.algorithms.algorithm import AnyState, PeriodicAlgorithm
from fedsys.algorithms.rates import THEORY
from fedsys.problems import Variational


@dataclass(frozen=True)
class VariationalAlgorithm(PeriodicAlgorithm[Variational, AnyState]):
    """A method for z with F(z) = 0.

    Args:
        lr: the step size, or "theory".
        local_steps: K, the steps of a round.
    """

    lr: float = THEORY

    kind: ClassVar[str] = "variational"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")
