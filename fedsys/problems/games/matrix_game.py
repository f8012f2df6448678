"""The policeman and the burglar, a matrix game on simplices.

Siqi Zhang, Sayantan Choudhury, Sebastian U. Stich, Nicolas Loizou. Communication-Efficient Gradient
Descent-Accent Methods for Distributed Variational Inequalities: Unified Analysis and Local Updates.
ICLR 2024. arXiv:2306.05100, Appendix H.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.errors import require
from fedsys.core.fields import Checked
from fedsys.core.random import generator
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.games.affine import AffineOracle
from fedsys.problems.terms import Simplex


@dataclass(frozen=True)
class PolicemanBurglar(Checked):
    """min over x, max over y in the simplex of x'A_i y, A_i(r, s) = w_r (1 - exp(-0.8 |r - s|)).

    Zhang et al. (ICLR 2024), arXiv:2306.05100, Appendix H.5, with 20 clients, after Nemirovski
    (Mini-course on convex programming algorithms, 2013). w = |N(0, 1)| is the value of a house.
    Nemirovski's burglar chooses the row and maximises, and his policeman chooses the column. In H.5
    and here the row player minimises. Each client has its own weights.

    Args:
        dim: d, the number of houses.
        weights: "row" for one weight w_r per row, as in the paper; "entry" for one per entry of the
            matrix, as in the authors' code.
        start: "uniform", or "random" for the projection of a normal vector, drawn from the seed.
        entropic: whether mirror maps are those of the negative entropy instead of the projection.
        noise: sigma of Gaussian noise added to every draw.
    """

    dim: int = 5
    weights: str = "row"
    start: str = "uniform"
    entropic: bool = False
    noise: float = 0.0

    kinds: ClassVar[tuple[str, ...]] = ("minimax", "variational")

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = "policeman_burglar"
        require(self.dim >= 2, owner, "dim", self.dim, "at least 2")
        require(self.weights in ("row", "entry"), owner, "weights", self.weights, "row or entry")
        starts = ("uniform", "random")
        require(self.start in starts, owner, "start", self.start, "uniform or random")
        require(self.noise >= 0, owner, "noise", self.noise, "at least 0")

    def oracle(self, site: Site) -> MatrixGameOracle:
        """Return the oracle of the clients hosted at a site."""
        matrices = [self._client_matrix(site.seed, client) for client in site.hosted]
        z0 = torch.full((2, self.dim), 1 / self.dim, dtype=torch.float64)
        if self.start == "random":
            stream = generator(site.seed, "policeman start")
            z0 = torch.from_numpy(stream.standard_normal((2, self.dim)))
        return MatrixGameOracle(site, matrices, z0, self.entropic, self.noise)

    def _client_matrix(self, seed: int, client: int) -> np.ndarray:
        stream = generator(seed, "policeman", client)
        columns = 1 if self.weights == "row" else self.dim
        houses = np.arange(self.dim)
        caught = np.exp(-0.8 * np.abs(houses[:, None] - houses))  # the probability
        matrix: np.ndarray = np.abs(stream.standard_normal((self.dim, columns))) * (1 - caught)
        return matrix


class MatrixGameOracle(AffineOracle):
    """min over x, max over y of x'A_i y on simplices: F_i(x, y) = (A_i y, -A_i'x).

    Args:
        site: the hosted clients, the seed, and the dtype and device of tensors.
        matrices: A_i [d, d] of each hosted client.
        z0: the initial points of both players [2, d], which are projected.
        entropic: whether mirror maps are those of the negative entropy.
        noise: sigma of additive Gaussian noise.
    """

    def __init__(
        self,
        site: Site,
        matrices: list[np.ndarray],
        z0: Tensor,
        entropic: bool = False,
        noise: float = 0.0,
    ) -> None:
        simplex = Simplex(entropic)
        start = simplex.prox(z0, 1.0)
        zero = np.zeros_like(matrices[0])
        games = [np.block([[zero, A], [-A.T, zero]])[None] for A in matrices]
        # The farthest points of a simplex are its corners, so the ball contains all strategies.
        corners = torch.cdist(start, torch.eye(z0.shape[1], dtype=z0.dtype)).amax(1)
        super().__init__(
            site,
            [(M, np.zeros(M.shape[:2])) for M in games],
            split=z0.shape[1],
            z0=start.flatten(),
            noise=noise,
            terms=(simplex, simplex),
            radius=float(corners.norm()),
        )

    @override
    def solution(self, sync: Sync) -> Tensor | None:
        # Optimal strategies of the mean game; None if they cannot be found to 1e-10.
        if "solution" not in self._known:
            M, _ = self.mean_game(sync)
            n = self._split
            z = torch.from_numpy(_optimal_strategies(M[:n, n:].cpu().numpy())).to(M)
            exact = (z - self.prox((z - M @ z)[None], 1.0)[0]).norm() < 1e-10
            self._known["solution"] = z.to(self.z0.dtype) if exact else None
        return self._known["solution"]

    @override
    def gap(self, z: Tensor, sync: Sync) -> float:
        # The duality gap max_j (A'x)_j - min_i (A y)_i of the projected strategies.
        M, _ = self.mean_game(sync)
        F = M @ self.prox(z[:1].double(), 1.0)[0]  # (A y, -A'x)
        return float((-F[self._split :]).max() - F[: self._split].min())


def _optimal_strategies(A: np.ndarray) -> np.ndarray:
    """Return (x, y) of min over x, max over y of x'A y on simplices, if the solution is unique.

    A linear programme finds the supports; on them each player makes the other indifferent.
    """
    from scipy.optimize import linprog  # the import takes half a second

    rows, columns = A.shape
    value = np.append(np.zeros(rows), 1.0)  # of the variables (x, v): min v with A'x <= v
    programme = linprog(
        value,
        A_ub=np.hstack([A.T, -np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * rows + [(None, None)],
    )
    of_x, of_y = programme.x[:rows] > 1e-9, -programme.ineqlin.marginals > 1e-9
    support = A[np.ix_(of_x, of_y)]
    x, y = np.zeros(rows), np.zeros(columns)
    x[of_x], y[of_y] = _equalise(support.T), _equalise(support)
    return np.concatenate([x, y])


def _equalise(A: np.ndarray) -> np.ndarray:
    """Return the strategy y with A y = v (1, ..., 1) and sum(y) = 1."""
    rows, columns = A.shape
    system = np.block([[A, -np.ones((rows, 1))], [np.ones((1, columns)), np.zeros((1, 1))]])
    solution: np.ndarray = np.linalg.lstsq(system, np.append(np.zeros(rows), 1.0), rcond=None)[0]
    return solution[:columns]
