"""Affine operators F_ij(z) = M_ij z + b_ij, whose solution, gap and constants are exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.constants import Constants
from fedsys.core.errors import InputError
from fedsys.core.oracles import Draw
from fedsys.core.random import BlockedDraws
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.games.affine_constants import (
    affine_gap,
    cocoercivity,
    generalised_largest,
    spectral_cocoercivity,
    symmetric_spectrum,
)
from fedsys.problems.games.operator_oracle import OperatorOracle
from fedsys.problems.stepping import GivenDraws, given_picks
from fedsys.problems.terms import NONE, Term
from fedsys.system.memory import to_device


class AffineOracle(OperatorOracle):
    """Clients with samples M [m, d, d] and b [m, d]; F_m is the mean over a client's samples.

    Args:
        site: the hosted clients, the seed, and the dtype and device of tensors.
        games: (M, b) of each hosted client.
        split: the number of the d variables that belong to the min player.
        z0: the initial point; zero by default.
        batch_size: samples per draw, with replacement; None for all of them.
        noise: sigma of additive Gaussian noise.
        terms: the composite terms or constraints of x and of y.
        radius: D of the gap; by default the distance from the initial point to the solution.
    """

    uses_autograd = False

    def __init__(
        self,
        site: Site,
        games: Sequence[tuple[np.ndarray, np.ndarray]],
        split: int,
        z0: Tensor | None = None,
        batch_size: int | None = None,
        noise: float = 0.0,
        terms: tuple[Term, Term] = (NONE, NONE),
        radius: float | None = None,
    ) -> None:
        dim = games[0][1].shape[1]
        super().__init__(site, torch.zeros(dim) if z0 is None else z0, split, terms, noise)
        self._M = site.convert(np.stack([M for M, _ in games]))
        self._b = site.convert(np.stack([b for _, b in games]))
        self._mean_M, self._mean_b = self._M.mean(1), self._b.mean(1)
        self._mean_operator = _Affine(self._mean_M.mT.contiguous().mT, self._mean_b)
        self._samples, self.batch_size = self._M.shape[1], batch_size
        self.sizes = [self._samples] * len(games)
        self._picks = BlockedDraws(site.seed, "samples", site.hosted)
        self._draws: GivenDraws | None = None
        # Whether the operator is that of the matrices, and not a subclass' own.
        own, inherited = type(self), ("sample_operator", "full_operator", "operator")
        self._is_dense = all(getattr(own, n) is getattr(AffineOracle, n) for n in inherited)
        self._radius = radius
        self._constants: Constants | None = None
        self._spectrum: tuple[Tensor, Tensor] | None = None
        self._known: dict[str, Tensor | None] = {}

    @property
    @override
    def finite_sum(self) -> bool:
        return self.batch_size is not None

    @property
    @override
    def samples_per_draw(self) -> int | None:
        return self.batch_size

    @override
    def use_draws(self, draws: GivenDraws) -> None:
        if self.batch_size is None:
            raise InputError(
                "draws= is for draws of samples, and this problem draws all of them; give it a "
                "batch_size"
            )
        self._draws = draws

    @override
    def draw_sample(self, step: int, k: int) -> Draw:
        # Indices of samples [C, B].
        if self.batch_size is None:
            return None
        if self._draws is None:
            picks = self._picks.integers(step, k, self._samples, self.batch_size)
        else:
            picks = given_picks(self._draws, self.site.hosted, self.sizes, step, k, self.batch_size)
        return to_device(picks, self._M.device)

    @override
    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        if xi is None and self._is_dense:
            return self._mean_operator(z)
        return super().operator(z, xi)

    @override
    def sample_operator(self, z: Tensor, sample: Draw) -> Tensor:
        if sample is None:
            return self.full_operator(z)
        return self._affine(sample)(z)

    @override
    def full_operator(self, z: Tensor) -> Tensor:
        return self._mean_operator(z)

    def drawn_samples(self, xi: Draw) -> Tensor:
        """Return the samples of a draw, indices [C, B]."""
        samples: Tensor = xi[0]
        return samples

    def operator_of_samples(self, z: Tensor, index: Tensor) -> Tensor:
        """Return F_mj(z_m) for every sample j of `index` [C, B]: [C, B, d]."""
        M, b = (chosen_samples(values, index) for values in (self._M, self._b))
        return (M @ z[:, None, :, None])[..., 0] + b

    @override
    def operators(self, z: Tensor, xi: Draw = None, full: bool = False) -> Tensor:
        if not self._is_dense:
            return super().operators(z, xi, full)
        sample, noise = (None, None) if full or xi is None else xi
        F = self._affine(sample).at_many(z)
        return F if noise is None else F.add_(noise)

    def _affine(self, sample: Draw) -> _Affine:
        if sample is None:
            return self._mean_operator
        return _Affine(*(chosen_samples(values, sample).mean(1) for values in (self._M, self._b)))

    def mean_game(self, sync: Sync) -> tuple[Tensor, Tensor]:
        """Return (M, b) of the mean operator; only the first call communicates."""
        if "M" not in self._known:
            M, b = sync(self._mean_M.double(), self._mean_b.double())
            self._known.update(M=M[0], b=b[0])
        M_mean, b_mean = self._known["M"], self._known["b"]
        assert M_mean is not None
        assert b_mean is not None
        return M_mean, b_mean

    @override
    def solution(self, sync: Sync) -> Tensor | None:
        # z* = -M^-1 b; unknown for a singular game and for one with terms.
        if "solution" not in self._known:
            M, b = self.mean_game(sync)
            regular = not self._has_terms and bool(torch.linalg.cond(M) < 1e12)
            z = -torch.linalg.solve(M, b) if regular else None
            self._known["solution"] = None if z is None else z.to(self.z0.dtype)
        return self._known["solution"]

    def radius(self, sync: Sync) -> float:
        """Return D, the radius of the ball around the initial point."""
        if self._radius is not None:
            return self._radius
        solution = self.solution(sync)
        return 1.0 if solution is None else float((self.z0[0] - solution).norm()) or 1.0

    @override
    def gap(self, z: Tensor, sync: Sync) -> float | None:
        # Exactly: sup over ||u - z0|| <= D of <M u + b, z - u>.
        if self._has_terms:
            return None
        M, b = self.mean_game(sync)
        if self._spectrum is None:
            self._spectrum = symmetric_spectrum(M)
        centre = self.z0[0].double()
        return affine_gap(M, b, z[0].double(), centre, self.radius(sync), self._spectrum)

    @override
    def constants(self, sync: Sync) -> Constants:
        # Exactly, by linear algebra: of each client, then the extremes over all clients.
        if self._constants is not None:
            return self._constants
        D = self.radius(sync)
        M, b = self.mean_game(sync)
        z = self.solution(sync)
        at = self.z0[0].double() if z is None else z.double()
        rows = [self._client_constants(row, M, b, at, D) for row in range(len(self._M))]
        # [M clients, values]: every constant is the largest over the clients; mu is the smallest.
        values = sync.gather(torch.tensor(rows, dtype=torch.float64))
        extremes = values.max(0).values.tolist()
        minus_mu, minus_mu_y, L, spectral, exact, samples, samples_exact, spread, xi, _ = extremes
        noise = self._scale * self.z0.shape[1] ** 0.5
        sampled = spread if self.batch_size is not None else 0.0
        self._constants = Constants(
            mu=max(0.0, -minus_mu),
            mu_y=max(0.0, -minus_mu_y),
            L=L,
            ell_spectral=spectral,
            ell_exact=exact,
            ell_samples_spectral=samples,
            ell_samples_exact=samples_exact,
            beta=cocoercivity(M),
            sigma=float(np.sqrt(noise**2 + sampled / (self.batch_size or 1))),
            F_star=float("inf") if z is None else float(values[:, -1].square().mean().sqrt()),
            xi=xi if xi > 1e-9 * L * D else 0.0,
            G=float((M @ self.z0[0].double() + b).norm() + torch.linalg.matrix_norm(M, 2) * D),
            Lambda=0.0,
            radius=D,
            dim=self.z0.shape[1],
            affine=True,
            monotone=minus_mu <= 1e-12 * L,
        )
        return self._constants

    def _client_constants(
        self, row: int, M: Tensor, b: Tensor, solution: Tensor, D: float
    ) -> list[float]:
        mean_M, mean_b = self._mean_M[row].double(), self._mean_b[row].double()
        samples, offsets = self._M[row].double(), self._b[row].double()
        symmetric = (mean_M + mean_M.T) / 2
        second_moment = (samples.transpose(1, 2) @ samples).mean(0)
        deviation = (samples @ solution + offsets) - (mean_M @ solution + mean_b)
        z0 = self.z0[0].double()
        difference = (mean_M - M) @ z0 + mean_b - b
        return [
            -float(torch.linalg.eigvalsh(symmetric)[0]),
            -float(torch.linalg.eigvalsh(symmetric[self._split :, self._split :])[:1].sum()),
            float(torch.linalg.matrix_norm(mean_M, 2)),
            spectral_cocoercivity(mean_M[None]),
            cocoercivity(mean_M),
            spectral_cocoercivity(samples),
            generalised_largest(second_moment, symmetric),
            float(deviation.square().sum(1).mean()),
            float(difference.norm() + torch.linalg.matrix_norm(mean_M - M, 2) * D),
            float((mean_M @ solution + mean_b).norm()),
        ]


def chosen_samples(values: Tensor, sample: Tensor) -> Tensor:
    """Return values[c, sample[c]] for each client c: [C, B, ...].

    It uses index_select on the flattened samples; indexing by two tensors takes twenty times as
    long.
    """
    clients, samples = values.shape[:2]
    first = torch.arange(0, clients * samples, samples, device=sample.device)[:, None]
    chosen = values.flatten(0, 1).index_select(0, (first + sample).flatten())
    return chosen.reshape(*sample.shape, *values.shape[2:])


class _Affine:
    """z -> M_c z_c + b_c for each client c.

    On the CPU it uses NumPy, because torch's bmm takes five times as long for one column.
    Contiguous columns take a sixth less time than contiguous rows.
    """

    def __init__(self, M: Tensor, b: Tensor) -> None:
        self._M, self._b = M, b
        on_cpu = M.device.type == "cpu"
        self._arrays = (M.mT.numpy(), b.numpy()) if on_cpu else None

    def __call__(self, z: Tensor) -> Tensor:
        if self._arrays is None:
            return torch.baddbmm(self._b[:, :, None], self._M, z[:, :, None])[:, :, 0]
        transposed, b = self._arrays
        F = np.vecmat(z.numpy(), transposed)
        F += b
        return torch.from_numpy(F)

    def at_many(self, z: Tensor) -> Tensor:
        """Return M_c z_rc + b_c for the points z [R, C, d] of R runs."""
        if self._arrays is None:
            products = torch.baddbmm(self._b[:, None], z.transpose(0, 1), self._M.mT)
            return products.transpose(0, 1).contiguous()
        transposed, b = self._arrays
        F = np.matmul(z.numpy().transpose(1, 0, 2), transposed).transpose(1, 0, 2)
        return torch.from_numpy(F + b)
