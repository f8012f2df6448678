"""Games given by their operator: z = (x, y), F = (grad_x f, -grad_y f)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsys.communication import Sync
from fedsys.problems.oracle import Draw, Site, SteppingOracle


class OperatorOracle(SteppingOracle):
    """Serves minimax algorithms from an operator; a subclass gives `operator`.

    Args:
        site: where the oracle lives.
        z0: the starting point [d].
        split: how many of the d variables belong to the min player x.
    """

    def __init__(self, site: Site, z0: Tensor, split: int) -> None:
        super().__init__(site)
        self.z0 = site.rows(z0)
        self.x0, self.y0 = self.z0[:, :split], self.z0[:, split:]
        self._split = split

    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        """F_m(z_m; xi_m)."""
        raise NotImplementedError

    def full_operator(self, z: Tensor) -> Tensor:
        """F_m(z_m)."""
        raise NotImplementedError

    def grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """F = (gx, -gy)."""
        F = self.operator(torch.cat([x, y], dim=1), xi)
        return F[:, : self._split], -F[:, self._split :]

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """The two players."""
        return {"x": z[: self._split], "y": z[self._split :]}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """The norm of the mean operator."""
        return {"operator_norm": float(sync(self.full_operator(z))[0].norm())}
