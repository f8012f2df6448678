"""Games given by their operator: z = (x, y), F = (grad_x f, -grad_y f)."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from fedsys.core.oracles import Draw
from fedsys.core.random import BlockedDraws
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.stepping import SteppingOracle
from fedsys.problems.terms import NONE, Term, TwoPlayers


class OperatorOracle(TwoPlayers, SteppingOracle):
    """An oracle for variational and minimax algorithms; a subclass gives the operator.

    Args:
        site: the hosted clients, the seed, and the dtype and device of tensors.
        z0: the initial point [d].
        split: the number of the d variables that belong to the min player x.
        terms: the composite terms or constraints of x and of y.
        noise: sigma of Gaussian noise added to every draw, E||noise||^2 = sigma^2.
    """

    def __init__(
        self,
        site: Site,
        z0: Tensor,
        split: int,
        terms: tuple[Term, Term] = (NONE, NONE),
        noise: float = 0.0,
    ) -> None:
        super().__init__(site)
        self.z0 = site.rows(z0)
        self.x0, self.y0 = self.z0[:, :split], self.z0[:, split:]
        self._split, self._terms = split, terms
        self._scale: float = noise * z0.numel() ** -0.5
        self._noises = BlockedDraws(site.seed, "noise", site.hosted)

    @abstractmethod
    def full_operator(self, z: Tensor) -> Tensor:
        """Return F_m(z_m)."""

    def sample_operator(self, z: Tensor, sample: Draw) -> Tensor:
        """Return F_m at a sample from `draw_sample`, or on all data if the sample is None."""
        return self.full_operator(z)

    def draw_sample(self, step: int, k: int) -> Draw:
        """Draw a sample of the finite sum; None for all samples, or if there is no finite sum."""
        return None

    def draw(self) -> Draw:
        """Draw a sample and additive noise; None if the problem has neither."""
        if self._scale == 0 and not self.finite_sum:
            self._drawn += 1
            return None
        step, k = self._next()
        noise = None
        if self._scale > 0:
            rows = self._noises.normal(step, k, self.z0.shape[1])
            noise = self._scale * self.site.convert(rows)
        return self.draw_sample(step, k), noise

    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        """Return F_m(z_m; xi_m)."""
        if xi is None:
            return self.full_operator(z)
        sample, noise = xi
        F = self.sample_operator(z, sample)
        return F if noise is None else F + noise

    def grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """Return the gradients in x and y at a draw, from F = (gx, -gy)."""
        return self._players(self.operator(torch.cat([x, y], dim=1), xi))

    def full_grads(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients in x and y on all data, from F = (gx, -gy)."""
        return self._players(self.full_operator(torch.cat([x, y], dim=1)))

    def operators(self, z: Tensor, xi: Draw = None, full: bool = False) -> Tensor:
        """Return F_m(z_rm; xi_m) at the points z [R, C, d] of R runs, which share the draw.

        With `full` they are on all data, and there is no draw.
        """
        evaluate = self.full_operator if full else lambda rows: self.operator(rows, xi)
        return torch.stack([evaluate(rows) for rows in z])

    def _players(self, F: Tensor) -> tuple[Tensor, Tensor]:
        return F[:, : self._split], -F[:, self._split :]

    def solution(self, sync: Sync) -> Tensor | None:
        """Return z* [d], or None if it is unknown."""
        return None

    def gap(self, z: Tensor, sync: Sync) -> float | None:
        """Return sup over a ball of <F(u), z - u>, or the problem's own gap; None if unknown."""
        return None

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """Return x and y by name."""
        return {"x": z[: self._split], "y": z[self._split :]}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """Return operator_norm (of z - prox(z - F(z)) if there are terms), relative_error, gap."""
        mean = sync(self.full_operator(z))
        residual = z - self.prox(z - mean, 1.0) if self._has_terms else mean
        metrics = {"operator_norm": float(residual[0].norm())}
        solution, gap = self.solution(sync), self.gap(z, sync)
        if solution is not None:
            start = (self.z0[0] - solution).square().sum()
            metrics["relative_error"] = float((z[0] - solution).square().sum() / start)
        if gap is not None:
            metrics["gap"] = gap
        return metrics
