"""What some oracles can do beyond their kind: single samples, a known solution, judging models.

All protocols are optional. An algorithm that needs one declares it, and problems whose oracle does
not offer it are refused; metrics that need one are left out.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from fedsys.core.oracles import Draw
from fedsys.core.sync import Sync


@runtime_checkable
class FiniteSum(Protocol):
    """An oracle whose operators are means over samples that can be evaluated one by one.

    It is for draws of samples, `Oracle.finite_sum`. Client c has the samples 0..sizes[c]-1; B is
    the number of samples of a draw.

    Attributes:
        sizes: the number of samples of each hosted client.
        batch_size: B, or None if a draw has all samples.
    """

    sizes: list[int]
    batch_size: int | None

    def drawn_samples(self, xi: Draw) -> Tensor:
        """Return the samples of a draw, indices [C, B]."""

    def operator_of_samples(self, z: Tensor, index: Tensor) -> Tensor:
        """Return F_mj(z_m) for every sample j of `index` [C, B]: [C, B, d], without noise."""


@runtime_checkable
class Solved(Protocol):
    """An oracle that may know the solution of its problem."""

    def solution(self, sync: Sync) -> Tensor | None:
        """Return z* [d], the same on all ranks, or None if it is unknown."""


@runtime_checkable
class CrossSite(Protocol):
    """An oracle whose clients own test samples, on which any client's model can be judged.

    Attributes:
        judges_all_models: whether the site-by-site matrix is wanted.
        synchronised_buffers: the buffers [C, b] of the clients that a model is evaluated with.
    """

    judges_all_models: bool
    synchronised_buffers: Tensor | None

    def client_aucs(self, z: Tensor, sync: Sync) -> Tensor:
        """Return the AUC of a model, the same in all rows [C, d], at each hosted client [C].

        It is NaN for a client whose test samples are of one class.
        """
