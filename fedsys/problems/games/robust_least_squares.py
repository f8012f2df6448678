"""Robust least squares.

Siqi Zhang, Sayantan Choudhury, Sebastian U. Stich, Nicolas Loizou. Communication-Efficient Gradient
Descent-Accent Methods for Distributed Variational Inequalities: Unified Analysis and Local Updates.
ICLR 2024. arXiv:2306.05100, eq. (6) and Appendix G.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.constants import Constants
from fedsys.core.errors import InputError, require
from fedsys.core.fields import Checked
from fedsys.core.oracles import Draw
from fedsys.core.random import generator
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.data.sources.california import california_housing
from fedsys.problems.games.affine import AffineOracle, chosen_samples

SOURCES = ("synthetic", "california")


@dataclass(frozen=True)
class RobustLeastSquares(Checked):
    """min over beta, max over y of G(beta, y) / r, G = ||A beta - y||^2 - lam ||y - y0||^2.

    Zhang et al. (ICLR 2024), arXiv:2306.05100, eq. (6) and Appendix G.1. The r rows of A are
    assigned to the clients in order, and each row j is one sample:

        f_j = (a_j'beta)^2 - 2 y_j a_j'beta - (lam - 1) y_j^2 + 2 lam y0_j y_j - lam y0_j^2.

    The mean over clients of the means over rows is G / r: the factor nm = r of G.1 is left out.
    G.1 prints +2(lam - 1) for the curvature in y, which is -2(lam - 1), and beta instead of y in
    one line. At the solution beta* is the least-squares fit and y* = (lam y0 - A beta*)/(lam - 1).

    Synthetic data is y0 = A beta0 + eps, drawn from one stream of the seed that all clients share.
    The second argument of N(0, 0.1) and N(0, 0.01) is taken as a standard deviation, as the
    authors' code does for eps. That code uses other sizes, and overwrites the housing data with
    Gaussian numbers.

    Args:
        source: the source of A and y0: "synthetic", or "california" for the first rows of
            California Housing.
        rows: r, a multiple of the number of clients.
        features: s, the number of features of synthetic data; California Housing has 8.
        lam: lambda > 1, so that G is strongly concave in y.
        coefficient_std: the standard deviation of beta0.
        residual_std: the standard deviation of eps.
        standardise: whether to shift and scale the features to mean 0 and variance 1, and y0 to
            mean 0. The raw housing features have cond(A'A) = 6e9 (population in thousands,
            coordinates that barely vary), too large for any first-order method; standardised, it
            is 24.
        root: folder with cal_housing/cal_housing.data.
        download: whether to download the housing data if the file is missing.
        batch_size: rows per draw, or None for all rows of a client.
        noise: sigma of Gaussian noise added to every draw.
    """

    source: str = "synthetic"
    rows: int = 200
    features: int = 20
    lam: float = 50.0
    coefficient_std: float = 0.1
    residual_std: float = 0.01
    standardise: bool = False
    root: str | None = None
    download: bool = False
    batch_size: int | None = None
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = "robust_least_squares"
        known = self.source in SOURCES
        require(known, owner, "source", self.source, f"one of {', '.join(SOURCES)}")
        require(self.rows >= 1, owner, "rows", self.rows, "at least 1")
        require(self.features >= 1, owner, "features", self.features, "at least 1")
        require(self.lam > 1, owner, "lam", self.lam, "above 1")
        for name in ("coefficient_std", "residual_std", "noise"):
            require(getattr(self, name) >= 0, owner, name, getattr(self, name), "at least 0")
        size = self.batch_size
        valid = size is None or size >= 1
        require(valid, owner, "batch_size", size, "at least 1, or null for all rows of a client")

    def oracle(self, site: Site) -> RobustLeastSquaresOracle:
        """Return the oracle of the clients hosted at a site."""
        clients = site.placement.clients
        if self.rows % clients:
            raise InputError(
                f"robust_least_squares: rows must be a multiple of clients={clients}, "
                f"got {self.rows}; every client has the same number of rows"
            )
        A, y0 = self.data(site.seed)
        share = self.rows // clients
        parts = [range(client * share, (client + 1) * share) for client in site.hosted]
        return RobustLeastSquaresOracle(self, site, A, y0, parts)

    def data(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return A [r, s] and y0 [r] of all clients."""
        if self.source == "california":
            A, y0 = california_housing(self.rows, self.root, self.download)
        else:
            stream = generator(seed, "robust least squares")
            A = stream.standard_normal((self.rows, self.features))
            beta = self.coefficient_std * stream.standard_normal(self.features)
            y0 = A @ beta + self.residual_std * stream.standard_normal(self.rows)
        if self.standardise:
            spread = A.std(axis=0)
            A = (A - A.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
            y0 = y0 - y0.mean()
        return A, y0

    def client_game(
        self, A: np.ndarray, y0: np.ndarray, part: range
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return M [m, d, d] and b [m, d] of one client, where d = s + r."""
        s, d = A.shape[1], sum(A.shape)
        M, b = np.zeros((len(part), d, d)), np.zeros((len(part), d))
        for sample, row in enumerate(part):
            a, y = A[row], s + row
            M[sample, :s, :s] = 2 * np.outer(a, a)
            M[sample, :s, y] = -2 * a
            M[sample, y, :s] = 2 * a
            M[sample, y, y] = 2 * (self.lam - 1)
            b[sample, y] = -2 * self.lam * y0[row]
        return M, b


class RobustLeastSquaresOracle(AffineOracle):
    """An affine game whose clients are co-coercive, while only their mean is strongly monotone.

    The operator of a row only changes beta and one coordinate of y, so it is computed from the row
    and not from a matrix [d, d].
    """

    def __init__(
        self,
        problem: RobustLeastSquares,
        site: Site,
        A: np.ndarray,
        y0: np.ndarray,
        parts: list[range],
    ) -> None:
        super().__init__(
            site,
            [problem.client_game(A, y0, part) for part in parts],
            split=A.shape[1],
            batch_size=problem.batch_size,
            noise=problem.noise,
        )
        rows = np.array(parts)
        self._lam = problem.lam
        self._rows, self._targets = site.convert(A[rows]), site.convert(y0[rows])
        self._places = torch.from_numpy(rows + A.shape[1]).to(site.device)

    @override
    def sample_operator(self, z: Tensor, sample: Draw) -> Tensor:
        if sample is None:
            return self.full_operator(z)
        rows = chosen_samples(self._rows, sample)
        targets, places = self._targets.gather(1, sample), self._places.gather(1, sample)
        return self._operator(z, rows, targets, places)

    @override
    def full_operator(self, z: Tensor) -> Tensor:
        return self._operator(z, self._rows, self._targets, self._places)

    def _operator(self, z: Tensor, rows: Tensor, targets: Tensor, places: Tensor) -> Tensor:
        """Return the mean operator of rows [C, B, s], given their y0 and their indices in z."""
        weight = 2 / rows.shape[1]
        y, beta = z.gather(1, places), z[:, None, : self._split]
        fit = (rows * beta).sum(2)
        F = z.new_zeros(z.shape)
        F[:, : self._split] = weight * ((fit - y)[:, :, None] * rows).sum(1)
        return F.scatter_add_(1, places, weight * (fit + (self._lam - 1) * y - self._lam * targets))

    @override
    def constants(self, sync: Sync) -> Constants:
        # mu is that of the mean operator, 2 min(lambda_min(A'A), lam - 1) / r, as in the paper. A
        # client changes neither the other clients' parts of y nor beta outside of the span of its
        # rows, so its own mu is 0 and the assumption of the corollaries does not hold.
        M, _ = self.mean_game(sync)
        mu = float(torch.linalg.eigvalsh((M + M.T) / 2)[0])
        return replace(super().constants(sync), mu=mu)
