"""Affine operators F_ij(z) = M_ij z + b_ij, whose solution, gap and constants are exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.constants import Constants
from fedsys.core.oracles import Draw
from fedsys.core.random import BlockedDraws
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.games.operator_oracle import OperatorOracle
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
        self._radius = radius
        self._known: dict[str, Tensor | None] = {}

    @property
    @override
    def finite_sum(self) -> bool:
        return self.batch_size is not None

    @override
    def draw_sample(self, step: int, k: int) -> Draw:
        # Indices of samples [C, B].
        if self.batch_size is None:
            return None
        picks = self._picks.integers(step, k, self._samples, self.batch_size)
        return to_device(picks, self._M.device)

    @override
    def sample_operator(self, z: Tensor, sample: Draw) -> Tensor:
        if sample is None:
            return self.full_operator(z)
        M, b = (chosen_samples(values, sample).mean(1) for values in (self._M, self._b))
        return _Affine(M, b)(z)

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
        return affine_gap(M, b, z[0].double(), self.z0[0].double(), self.radius(sync))

    @override
    def constants(self, sync: Sync) -> Constants:
        # Exactly, by linear algebra: of each client, then the extremes over all clients.
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
        return Constants(
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


def spectral_cocoercivity(J: Tensor) -> float:
    """Return the largest ell of the Jacobians [n, d, d], where 1/ell = min Re(1/eigenvalue).

    This is how the authors of arXiv:2306.05100 compute ell. Eigenvalues that are zero up to
    rounding are ignored: they belong to variables that a client does not have.
    """
    used = ((J != 0).any(0) | (J != 0).any(0).T).any(0)  # the other variables have eigenvalue 0
    if not used.any():
        return 0.0
    eigenvalues = torch.linalg.eigvals(J[:, used][:, :, used])
    sizes = eigenvalues.abs()
    counted = sizes > 1e-12 * sizes.amax(1, keepdim=True)
    smallest = torch.where(counted, eigenvalues.real / sizes.square(), torch.inf).min()
    return float(1 / smallest) if smallest > 1e-12 else float("inf")


def cocoercivity(J: Tensor) -> float:
    """Return the exact ell of z -> J z, the smallest with ||J u||^2 <= ell <J u, u>."""
    return generalised_largest(J.T @ J, (J + J.T) / 2)


def generalised_largest(A: Tensor, S: Tensor) -> float:
    """Return the smallest ell with A <= ell S, for A >= 0.

    It is the largest eigenvalue of S^-1/2 A S^-1/2. It is infinite if S has a negative eigenvalue,
    or if A does not vanish on the null space of S.
    """
    values, vectors = torch.linalg.eigh(S)
    tolerance = 1e-12 * values[-1].abs().clamp(min=1e-300)
    null = vectors[:, values.abs() <= tolerance]
    A_on_null = torch.linalg.matrix_norm(null.T @ A @ null)
    if values[0] < -tolerance or A_on_null > 1e-12 * torch.linalg.matrix_norm(A):
        return float("inf")
    root = (vectors / values.sqrt())[:, values > tolerance]
    return float(torch.linalg.eigvalsh(root.T @ A @ root)[-1]) if root.numel() else 0.0


def affine_gap(M: Tensor, b: Tensor, x: Tensor, centre: Tensor, D: float) -> float:
    """Return the sup over ||u|| <= D of <M (c + u) + b, x - c - u>, where c is the centre.

    This is a trust-region problem, solved exactly. With F = M c + b and w = x - c the function is
    <F, w> + <M'w - F, u> - u'S u, S = sym(M) >= 0. Its maximiser is u = (2 S + 2 t I)^-1 g,
    g = M'w - F, with t >= 0 such that ||u|| <= D.
    """
    F, w = M @ centre + b, x - centre
    g = M.T @ w - F
    values, vectors = torch.linalg.eigh((M + M.T) / 2)
    values = values.clamp(min=0)
    c = vectors.T @ g

    def norm(t: float) -> float:
        return float((c / (2 * (values + t)).clamp(min=1e-300)).norm())

    t = 0.0
    if norm(0.0) > D:
        low, high = 0.0, float(c.norm()) / (2 * D)
        for _ in range(200):
            t = (low + high) / 2
            if t in (low, high):  # there is no floating-point number in between
                break
            low, high = (t, high) if norm(t) > D else (low, t)
        t = high
    u = c / (2 * (values + t)).clamp(min=1e-300)
    u = torch.where(c == 0, torch.zeros_like(u), u)
    # u = x - c gives 0, so a negative value is a rounding error.
    return max(0.0, float(F @ w + c @ u - (values * u.square()).sum()))
