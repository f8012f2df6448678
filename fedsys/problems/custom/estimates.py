"""Constants and gaps of an operator that is known as a function only.

Small operators are linearised: Jacobians at sampled points give the constants by linear algebra,
exactly if the operator is affine. Large ones are measured by Lanczos iterations with products of
the Jacobian and its transpose, one client at a time. Axes: C hosted clients, d variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsys.core.constants import Constants
from fedsys.core.random import generator
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.custom.client_loop import TRIAL, Hosted
from fedsys.problems.custom.jacobians import Products, jacobian
from fedsys.problems.games.affine import AffineOracle
from fedsys.problems.games.affine_constants import affine_gap

DENSE = 512
"""The largest d whose Jacobians are stored; Lanczos iterations measure larger ones."""
_POINTS = 8
"""Points at which an operator that is not affine is linearised."""
_ENTRIES = 2**24
"""The largest number of entries of the Jacobians of all samples of a client."""
_DRAWS = 64
"""Draws from which the deviation of a function with a generator is estimated."""
_ASCENT = 100
"""Steps of the ascent that looks for the gap of an operator that is not affine."""


class Operator(Protocol):
    """What is measured: an operator on all data and at single samples."""

    site: Site
    z0: Tensor
    step: int
    _hosted: Hosted

    def full_rows(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return F_m(z_m), and where it is random."""

    def sample_rows(self, z: Tensor, samples: Sequence[int]) -> Tensor:
        """Return F_m(z_m) at one sample of each client."""

    def operator(self, z: Tensor, xi: Any) -> Tensor:
        """Return F_m(z_m) at a draw."""


class Estimates:
    """The constants and the gap of an operator, computed once and kept.

    Args:
        oracle: the operator.
        split: the number of variables of the min player.
        noise: sigma of the noise that is added to every draw.
        dense: the largest d whose Jacobians are stored.
    """

    def __init__(self, oracle: Operator, split: int, noise: float, dense: int = DENSE) -> None:
        self._oracle, self._split, self._noise, self._dense = oracle, split, noise, dense
        self._kept: dict[str, Any] = {}

    def constants(self, sync: Sync, radius: float | None, solution: Tensor | None) -> Constants:
        """Return the estimated constants, the same on all ranks."""
        if "constants" not in self._kept:
            with torch.inference_mode(False):
                self._kept["constants"] = self._measured(sync, radius, solution)
        found: Constants = self._kept["constants"]
        return found

    def gap(self, z: Tensor, radius: float, sync: Sync) -> dict[str, float]:
        """Return the gap at the mean point: exact for affine operators, else a lower bound."""
        with torch.inference_mode(False):
            z = z.clone()
            if self._oracle.z0.shape[1] <= self._dense and self.is_affine(sync):
                M, b = self._mean_game(sync)
                centre = self._oracle.z0[0].double()
                return {"gap": affine_gap(M, b, z[0].double(), centre, radius)}
            return {"gap_lower_bound": self._ascended(z, radius, sync)}

    def is_affine(self, sync: Sync) -> bool:
        """Return whether the Jacobians at the starting point and elsewhere agree, on all ranks."""
        if "affine" not in self._kept:
            here, there = self._jacobian(self._oracle.z0), self._jacobian(self._points(1.0)[1])
            scale = here.abs().amax((1, 2)).clamp(min=1e-300)
            change = (here - there).abs().amax((1, 2)) / scale
            changes = sync.gather(change[:, None].double())
            self._kept["affine"] = bool(changes.max() < 1e-6)
        return bool(self._kept["affine"])

    def _measured(self, sync: Sync, radius: float | None, solution: Tensor | None) -> Constants:
        oracle = self._oracle
        if oracle.z0.shape[1] > self._dense:
            return self._by_lanczos(sync, radius or 1.0)
        if self.is_affine(sync):
            found = self._linearised(oracle.z0, radius, True).constants(sync)
            sampled, how = self._sampled(), "linear algebra on the Jacobian, which is constant"
            how += f" ({sampled} of the samples of each client)" if sampled else ""
            return replace(self._with_deviation(found, sync), exact=not sampled, source=how)
        distance = inf if solution is None else float((oracle.z0[0] - solution).norm())
        D = radius or (distance if 0 < distance < inf else 1.0)
        found = self._extremes([self._linearised(z, D, True) for z in self._points(D)], sync)
        return replace(
            self._with_deviation(found, sync),
            exact=False,
            affine=False,
            Lambda=inf,
            radius=D,
            source=f"the Jacobians at {_POINTS} points within {D:.3g} of the start",
        )

    def _extremes(self, games: list[AffineOracle], sync: Sync) -> Constants:
        found = [game.constants(sync) for game in games]
        largest = (
            *("L", "ell_spectral", "ell_exact", "ell_samples_spectral", "ell_samples_exact"),
            *("beta", "sigma", "xi", "G"),
        )
        worst = {name: max(getattr(one, name) for one in found) for name in largest}
        mu, monotone = min(one.mu for one in found), all(one.monotone for one in found)
        return replace(found[0], **worst, mu=mu, monotone=monotone)

    def _with_deviation(self, found: Constants, sync: Sync) -> Constants:
        """Add the deviation of a function that draws from a generator."""
        draws = self._oracle._hosted.draws
        if draws.counts is not None:
            return found
        z = self._oracle.z0
        rows = [self._drawn(z, k) for k in range(_DRAWS)]
        spread = torch.stack(rows).double().var(0).sum(1)
        variance = float(sync.gather(spread[:, None]).max())
        return replace(found, sigma=float(np.sqrt(found.sigma**2 + variance)))

    def _drawn(self, z: Tensor, k: int) -> Tensor:
        xi = (0, TRIAL[1] + 1000 + k)
        given = xi if self._noise == 0 else (xi, torch.zeros_like(z))
        return self._oracle.operator(z, given)

    def _points(self, D: float) -> list[Tensor]:
        """Return the starting point and random ones within a distance of it, equal for clients."""
        z0 = self._oracle.z0
        points = [z0]
        for k in range(1, _POINTS):
            stream = generator(self._oracle.site.seed, "points", 0, k)
            u = stream.standard_normal(z0.shape[1])
            u *= D * stream.random() ** (1 / z0.shape[1]) / np.linalg.norm(u)
            points.append(z0 + self._oracle.site.convert(u))
        return points

    def _sampled(self) -> int | None:
        """Return the number of samples that are measured; None if it is all of them."""
        draws, d = self._oracle._hosted.draws, self._oracle.z0.shape[1]
        if draws.counts is None:
            return None
        most = max(1, _ENTRIES // d**2)
        return most if max(draws.counts) > most else None

    def _nth(self, j: int) -> list[int]:
        """Return the j-th sample of each client, modulo its number of samples."""
        return [j % count for count in self._oracle._hosted.draws.sizes]

    def _linearised(self, z: Tensor, radius: float | None, samples: bool) -> AffineOracle:
        """Return the affine operators that touch F at z."""
        draws, batch_size = self._oracle._hosted.draws, None
        pairs = [self._touching(z, lambda u: self._oracle.full_rows(u)[0])]
        if samples and draws.counts is not None:
            batch_size = draws.batch_size
            counts = range(self._sampled() or max(draws.counts))
            pairs = [
                self._touching(z, partial(self._oracle.sample_rows, samples=self._nth(j)))
                for j in counts
            ]
        M = torch.stack([pair[0] for pair in pairs], dim=1).cpu().numpy()
        b = torch.stack([pair[1] for pair in pairs], dim=1).cpu().numpy()
        return AffineOracle(
            self._oracle.site,
            list(zip(M, b, strict=True)),
            self._split,
            self._oracle.z0[0],
            batch_size,
            self._noise,
            radius=radius,
        )

    def _touching(self, z: Tensor, F: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        M = jacobian(F, z)
        with torch.no_grad():
            return M, F(z) - torch.einsum("cij,cj->ci", M, z)

    def _jacobian(self, z: Tensor) -> Tensor:
        return jacobian(lambda u: self._oracle.full_rows(u)[0], z)

    def _mean_game(self, sync: Sync) -> tuple[Tensor, Tensor]:
        if "game" not in self._kept:
            M, b = self._touching(self._oracle.z0, lambda u: self._oracle.full_rows(u)[0])
            means = sync(M.double(), b.double())
            self._kept["game"] = means[0][0], means[1][0]
        M_mean, b_mean = self._kept["game"]
        return M_mean, b_mean

    def _ascended(self, z: Tensor, radius: float, sync: Sync) -> float:
        """Return the largest <F(u), z - u> that an ascent over the ball finds: a lower bound."""
        centre, u = self._oracle.z0, z.clone()
        best, step = 0.0, radius
        value, gradient = self._pairing(z, u, sync)
        for _ in range(_ASCENT):
            ahead = u + step * gradient / gradient[0].norm().clamp(min=1e-300)
            offset = ahead - centre
            length = float(offset[0].norm())
            ahead = centre + offset * min(1.0, radius / length) if length > 0 else centre
            trial, slope = self._pairing(z, ahead, sync)
            if trial > value:
                u, value, gradient = ahead, trial, slope
            else:
                step /= 2
            best = max(best, value)
        return best

    def _pairing(self, z: Tensor, u: Tensor, sync: Sync) -> tuple[float, Tensor]:
        """Return <F(u), z - u> of the mean operator, and its gradient in u."""
        with torch.enable_grad():
            leaf = u.detach().clone().requires_grad_()
            F = self._oracle.full_rows(leaf)[0]
            (back,) = torch.autograd.grad(F, leaf, (z - u).detach(), materialize_grads=True)
        mean, pulled = sync(F.detach(), back)
        return float((mean[0] * (z[0] - u[0])).sum()), pulled - mean

    def _by_lanczos(self, sync: Sync, radius: float) -> Constants:
        rows = []
        z = self._oracle.z0.detach()
        for row in range(len(z)):
            products = Products(lambda u: self._oracle.full_rows(u)[0], z, row)
            rows.append([products.largest_singular(), -products.smallest_symmetric()])
        L, minus_mu = sync.gather(torch.tensor(rows, dtype=torch.float64)).max(0).values.tolist()
        mu = max(0.0, -minus_mu)
        # ||F(u) - F(v)||^2 <= L^2 ||u - v||^2 <= L^2 / mu <F(u) - F(v), u - v>
        ell = L**2 / mu if mu > 0 else inf
        found = Constants(
            mu=mu,
            L=L,
            ell_spectral=ell,
            ell_exact=ell,
            sigma=self._noise,
            radius=radius,
            dim=z.shape[1],
            monotone=minus_mu <= 1e-6 * L,
            exact=False,
            source="Lanczos iterations with products of the Jacobian at the start; ell is L^2/mu",
        )
        return self._with_deviation(found, sync)
