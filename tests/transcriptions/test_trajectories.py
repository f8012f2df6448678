"""The paper is the test: each algorithm against its pseudocode, and against numbers by hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from support import compositional_network as network
from support import ratio_network as ratio
from support.cases import CLIENTS, SEED, Case, Drive
from support.processes import Ranks, connected
from torch import Tensor

from fedsys import algorithms
from fedsys.algorithms import (
    CDMA,
    CODASCA,
    EG,
    FCFL,
    FGDA,
    GDA,
    LDE,
    LESGD,
    LIPPAX,
    LSGD,
    SAGDA,
    SLIPPAX,
    AdaBelief,
    AdaFGDA,
    Adam,
    Averaged,
    CoDA,
    FedAvg,
    FedBiO,
    FedBiOAcc,
    FedGDAGT,
    FedMinMax,
    FedNest,
    FedNestBilevel,
    FedProx,
    FedReg,
    LocalSCGDAM,
    LocalSEG,
    LocalSGDA,
    LocalSGDAM,
    LocalSGDAPlus,
    LocalSGDM,
    MomentumLocalSGDA,
    MomentumLocalSGDAPlus,
    ProxSkip,
    ProxSkipLSVRGDA,
    Scaffold,
)
from fedsys.algorithms.minimax.fgda import READINGS
from fedsys.communication import LocalTransport, SkipCoin
from fedsys.core.algorithm import Algorithm
from fedsys.core.oracles import Oracle, Problem
from fedsys.core.placement import Placement
from fedsys.core.random import BLOCK, generator
from fedsys.core.rounds import Coins
from fedsys.core.schedules import Decreasing
from fedsys.core.site import Site
from fedsys.problems import (
    CompositionalProblem,
    ExactHypergradient,
    MinimaxProblem,
    MinimisationProblem,
    NeumannHypergradient,
    QuadraticGame,
    VariationalProblem,
)
from fedsys.problems.games.operator_oracle import OperatorOracle
from fedsys.problems.stepping import SteppingOracle
from fedsys.problems.terms import L1, NONE, Simplex, Term
from transcriptions import fgda as listing
from transcriptions.cdma import cdma
from transcriptions.coda import coda
from transcriptions.codasca import codasca
from transcriptions.fair import fcfl, fedminmax, fedreg
from transcriptions.fedavg import fedavg
from transcriptions.fedbio import fedbio, fedbioacc, neumann
from transcriptions.fedgda_gt import fedgda_gt
from transcriptions.fednest import fednest
from transcriptions.fednest_bilevel import Derivatives, fednest_bilevel
from transcriptions.fedprox import fedprox
from transcriptions.gradients import FullGradients
from transcriptions.lde import lde
from transcriptions.lesgd import lesgd
from transcriptions.lippax import lippax
from transcriptions.local_seg import local_seg
from transcriptions.local_sgda import local_sgda
from transcriptions.local_sgda_plus import local_sgda_plus
from transcriptions.localscgdam import localscgdam
from transcriptions.localsgdam import localsgdam
from transcriptions.localsgdm import localsgdm
from transcriptions.lsgd import lsgd
from transcriptions.momentum_local_sgda import momentum_local_sgda
from transcriptions.proxskip import proxskip, proxskip_lsvrgda
from transcriptions.sagda import sagda
from transcriptions.scaffold import scaffold

STEPS = 200
Fields = dict[str, np.ndarray]


def matrices(seed: int, rows: int, columns: int) -> np.ndarray:
    """A different matrix for each client."""
    return np.random.default_rng(seed).standard_normal((CLIENTS, rows, columns)) / 2


# min over x of the mean of x'A_i x / 2 + sum log cosh x + (b_i + noise)'x, A_i positive definite.

A = matrices(1, 3, 3) @ matrices(1, 3, 3).swapaxes(1, 2) + 0.2 * np.eye(3)
B, C = matrices(2, 3, 2), matrices(3, 2, 2) @ matrices(3, 2, 2).swapaxes(1, 2) + 0.3 * np.eye(2)
b, c = matrices(4, 3, 1)[:, :, 0], matrices(5, 2, 1)[:, :, 0]
X0, Y0 = np.array([1.0, -2.0, 0.5]), np.array([0.3, 1.5])


def loss(x: Tensor, client: int, rng: np.random.Generator) -> Tensor:
    linear = torch.from_numpy(b[client] + 0.1 * rng.standard_normal(3))
    return x @ torch.from_numpy(A[client]) @ x / 2 + x.cosh().log().sum() + linear @ x


def gradient(client: int, x: np.ndarray, t: int, k: int = 0) -> np.ndarray:
    noise = generator(SEED, "function", client, t, k).standard_normal(3)
    return A[client] @ x + np.tanh(x) + b[client] + 0.1 * noise


# min over x, max over y of the mean of x'A_i x / 2 + x'B_i y - y'C_i y / 2 + b_i'x - c_i'y + noise.


def game(x: Tensor, y: Tensor, client: int, rng: np.random.Generator) -> Tensor:
    A_, B_, C_ = (torch.from_numpy(M[client]) for M in (A, B, C))
    noise = torch.from_numpy(rng.standard_normal(5))
    bilinear = x @ A_ @ x / 2 + x @ B_ @ y - y @ C_ @ y / 2
    linear = torch.from_numpy(b[client]) @ x - torch.from_numpy(c[client]) @ y
    return bilinear + linear + 0.1 * (noise @ torch.cat([x, y]))


def stream(client: int, t: int, k: int) -> np.random.Generator:
    """Of the k-th draw of iteration t; those of `init`, t = -1, have numbers of their own."""
    return generator(SEED, "function", client, max(t, 0), k + (t < 0) * 2**20)


def gradients(client: int, x: np.ndarray, y: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
    noise = 0.1 * stream(client, t, 0).standard_normal(5)
    gx = A[client] @ x + B[client] @ y + b[client] + noise[:3]
    gy = B[client].T @ x - C[client] @ y - c[client] + noise[3:]
    return gx, gy


# The same game f_i at h = the mean of g_i(x) = x + tanh(G_i x + noise) / 2 in place of x: draw 0 is
# the outer sample, draw 1 the inner one.

G = matrices(8, 3, 3)


def inner(x: Tensor, client: int, rng: np.random.Generator) -> Tensor:
    noise = torch.from_numpy(0.1 * rng.standard_normal(3))
    return x + torch.tanh(torch.from_numpy(G[client]) @ x + noise) / 2


def inner_and_jacobian(client: int, x: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
    th = np.tanh(G[client] @ x + 0.1 * stream(client, t, 1).standard_normal(3))
    return x + th / 2, np.eye(3) + (1 - th**2)[:, None] * G[client] / 2


# Find z with mean_i F_i(z) = 0, F_i the mean of F_ij(z) = J_ij z + tanh z + b_ij over 4 samples j.

SAMPLES = 4
J = np.random.default_rng(6).standard_normal((CLIENTS, SAMPLES, 5, 5)) / 4 + 0.5 * np.eye(5)
JB = np.random.default_rng(7).standard_normal((CLIENTS, SAMPLES, 5))
Z0 = np.concatenate([X0, Y0])


def sample_operator(client: int, z: np.ndarray, t: int, k: int) -> np.ndarray:
    j = (7 * t + 3 * client + k) % SAMPLES
    return J[client, j] @ z + np.tanh(z) + JB[client, j]


def full_operator(client: int, z: np.ndarray) -> np.ndarray:
    return J[client].mean(0) @ z + np.tanh(z) + JB[client].mean(0)


def normal(client: int, t: int, k: int) -> np.ndarray:
    return generator(SEED, "normal", client, t // BLOCK, k).standard_normal((BLOCK, 5))[t % BLOCK]


class SumOracle(OperatorOracle):
    """The finite sum; a draw is (step, k)."""

    def __init__(self, site: Site, terms: tuple[Term, Term]) -> None:
        super().__init__(site, torch.from_numpy(Z0), split=3, terms=terms)

    def draw(self) -> tuple[int, int]:
        return self._next()

    def operator(self, z: Tensor, xi: tuple[int, int]) -> Tensor:
        return self._rows(z, lambda client, row: sample_operator(client, row, *xi))

    def full_operator(self, z: Tensor) -> Tensor:
        return self._rows(z, full_operator)

    def _rows(self, z: Tensor, F: Callable[[int, np.ndarray], np.ndarray]) -> Tensor:
        pairs = zip(self.site.hosted, z.numpy(), strict=True)
        return torch.from_numpy(np.stack([F(client, row) for client, row in pairs]))


@dataclass(frozen=True)
class SumProblem:
    """The finite sum, with terms of x and of y."""

    terms: tuple[Term, Term] = (NONE, NONE)

    def oracle(self, site: Site) -> SumOracle:
        return SumOracle(site, self.terms)


SUM = SumProblem()
COMPOSITE_SUM = SumProblem((L1(0.02), Simplex(entropic=True)))


def composite_mirror(dual: np.ndarray, weight: float) -> np.ndarray:
    """A soft threshold for x, and softmax for y: a simplex with the entropy as h."""
    x, y = dual[:3], dual[3:]
    primal_x = np.sign(x) * np.maximum(np.abs(x) - weight * 0.02, 0)
    return np.concatenate([primal_x, np.exp(y) / np.exp(y).sum()])


# min over x of the mean of f_i(x, y_i(x)), with y_i(x) of the minimum of g_i(x, .), where
# g_i = y'C_i y/2 + sum log cosh y + c_i'y - s x'B_i y + s y'y/2 and
# f_i = x'A_i x/2 + b_i'x + y'y/2 + s sum y, with s > 0 of draw (t, k).


def scale(client: int, t: int, k: int) -> float:
    return 0.5 + (7 * t + 3 * client + 5 * k) % 11 / 11


def inner_grad(client: int, x: np.ndarray, y: np.ndarray, t: int, k: int) -> np.ndarray:
    s = scale(client, t, k)
    return C[client] @ y + np.tanh(y) + c[client] - s * x @ B[client] + s * y


def outer_grads(
    client: int, x: np.ndarray, y: np.ndarray, t: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    return A[client] @ x + b[client], y + scale(client, t, k)


def hessian(client: int, y: np.ndarray, t: int, k: int) -> np.ndarray:
    return C[client] + np.diag(1 - np.tanh(y) ** 2 + scale(client, t, k))


def cross(client: int, t: int, k: int) -> np.ndarray:
    return -scale(client, t, k) * B[client]


class Rows(SteppingOracle):
    """A draw is (step, k); functions of one client's rows."""

    def draw(self) -> tuple[int, int]:
        return self._next()

    def rows(self, function: Callable[..., np.ndarray], *points: Tensor) -> Tensor:
        arguments = zip(self.site.hosted, *(point.numpy() for point in points), strict=True)
        return torch.from_numpy(np.stack([function(*each) for each in arguments]))


@dataclass(frozen=True)
class Matrices:
    oracle: Rows
    y: Tensor
    xi: tuple[int, int]

    def hessian_product(self, v: Tensor) -> Tensor:
        return self.oracle.rows(lambda i, y, v: hessian(i, y, *self.xi) @ v, self.y, v)

    def cross_product(self, v: Tensor) -> Tensor:
        return self.oracle.rows(lambda i, v: cross(i, *self.xi) @ v, v)


class TwoLevels(Rows):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.z0 = site.rows(torch.from_numpy(Z0))
        self.x0, self.y0 = self.z0[:, :3], self.z0[:, 3:]

    outer_draw = Rows.draw

    def inner_grad(self, x: Tensor, y: Tensor, xi: tuple[int, int]) -> Tensor:
        return self.rows(lambda i, x, y: inner_grad(i, x, y, *xi), x, y)

    def outer_grads(self, x: Tensor, y: Tensor, xi: tuple[int, int]) -> tuple[Tensor, Tensor]:
        gx = self.rows(lambda i, x, y: outer_grads(i, x, y, *xi)[0], x, y)
        return gx, self.rows(lambda i, x, y: outer_grads(i, x, y, *xi)[1], x, y)

    def curvature(self, x: Tensor, y: Tensor, xi: tuple[int, int]) -> Matrices:
        return Matrices(self, y, xi)


class SharedLevel(TwoLevels):
    shared_inner = True


def derivatives(client: int, x: np.ndarray, y: np.ndarray, t: int, k: int) -> Derivatives:
    gx, gy = outer_grads(client, x, y, t, k)
    H, J = hessian(client, y, t, k), cross(client, t, k)
    return Derivatives(inner_grad(client, x, y, t, k), gx, gy, H, J)


def omega(client: int, x: np.ndarray, y: np.ndarray, t: int) -> np.ndarray:
    return inner_grad(client, x, y, t - 1, 0)  # the papers' t starts at 1


def neumann_phi(client: int, x: np.ndarray, y: np.ndarray, t: int) -> np.ndarray:
    """The draws 1, 2, 3 are of the Hessians, 4 of f and 5 of the mixed derivatives."""
    hessians = [hessian(client, y, t - 1, k) for k in (1, 2, 3)]
    grads = outer_grads(client, x, y, t - 1, 4)
    return neumann(grads, cross(client, t - 1, 5), hessians, eta=0.3)


def exact_phi(client: int, x: np.ndarray, y: np.ndarray, t: int) -> np.ndarray:
    """The draw 1 is of f, 2 of all second derivatives."""
    gx, gy = outer_grads(client, x, y, t - 1, 1)
    inverse = np.linalg.inv(hessian(client, y, t - 1, 2))
    return gx - cross(client, t - 1, 2) @ inverse @ gy


# Groups a = 0, 1, 2 with risks |x - p_ia|^2/2 + noise'x; the disparity is log cosh(u_i'x + s).

COUNTS = np.array([[2, 3, 5], [6, 2, 2], [1, 1, 8], [4, 4, 2], [3, 3, 4], [5, 1, 4]])
CENTRES = np.random.default_rng(8).standard_normal((CLIENTS, 3, 3))
U = np.random.default_rng(9).standard_normal((CLIENTS, 3))


def group_risk(client: int, group: int, x: np.ndarray, t: int) -> tuple[float, np.ndarray]:
    away = x - CENTRES[client, group]
    s = scale(client, t, 0)
    return float(away @ away / 2 + s * x.sum()), away + s


def mean_loss(client: int, x: np.ndarray, t: int) -> tuple[float, np.ndarray]:
    shares, risks = COUNTS[client] / 10, [group_risk(client, a, x, t) for a in range(3)]
    value = sum(share * risk for share, (risk, _) in zip(shares, risks, strict=True))
    return value, sum(share * grad for share, (_, grad) in zip(shares, risks, strict=True))


def disparity(client: int, x: np.ndarray, t: int) -> tuple[float, np.ndarray]:
    along = U[client] @ x + 0.1 * scale(client, t, 0)
    return float(np.log(np.cosh(along))), np.tanh(along) * U[client]


class ThreeGroups(Rows):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.z0 = self.x0 = site.rows(torch.from_numpy(X0))
        self.group_shares = torch.from_numpy(COUNTS[list(site.hosted)] / 10)

    def grad(self, x: Tensor, xi: tuple[int, int]) -> Tensor:
        return self.loss_and_grad(x, xi)[1]

    def loss_and_grad(self, x: Tensor, xi: tuple[int, int]) -> tuple[Tensor, Tensor]:
        return self.valued(mean_loss, x, xi[0])

    def disparity_and_grad(self, x: Tensor, xi: tuple[int, int]) -> tuple[Tensor, Tensor]:
        return self.valued(disparity, x, xi[0])

    def valued(self, function: Callable[..., Any], x: Tensor, t: int) -> tuple[Tensor, Tensor]:
        value = self.rows(lambda i, x: np.array(function(i, x, t)[0]), x)
        return value, self.rows(lambda i, x: function(i, x, t)[1], x)

    def weighted_grad(self, x: Tensor, w: Tensor, xi: tuple[int, int]) -> tuple[Tensor, Tensor]:
        def risks(i: int, x: np.ndarray) -> list[tuple[float, np.ndarray]]:
            return [group_risk(i, a, x, xi[0]) for a in range(3)]

        def gradient(i: int, x: np.ndarray, w: np.ndarray) -> np.ndarray:
            return sum(COUNTS[i, a] / 10 * w[a] * grad for a, (_, grad) in enumerate(risks(i, x)))

        parts = self.rows(lambda i, x: np.array([r for r, _ in risks(i, x)]) * COUNTS[i] / 10, x)
        return self.rows(gradient, x, w), parts


@dataclass(frozen=True)
class Given:
    """A problem with the oracle of a test."""

    make: Callable[[Site], Any]

    def oracle(self, site: Site) -> Any:
        return self.make(site)


BILEVEL, SHARED, GROUPS = Given(TwoLevels), Given(SharedLevel), Given(ThreeGroups)
NEUMANN = NeumannHypergradient(terms=3, lr=0.3)
VARIANCE = {"delta": 0.5, "u": 2.0, "sigma": 0.7, "c_nu": 3.0, "c_omega": 2.0}


def bilevel_steps(method: Callable[..., Iterator[Fields]], phi: Any, **options: Any) -> Any:
    steps = {"eta": 0.1, "gamma": 0.2, "local_steps": 7}
    return lambda: method(omega, phi, X0, Y0, CLIENTS, STEPS, **steps, **options)


def coins(algorithm: Algorithm[Any, Any]) -> list[tuple[bool, ...]]:
    """What the shared coins show in each iteration: communication first, then the others."""
    schedule = algorithm.schedule
    assert isinstance(schedule, Coins)
    communicator = SkipCoin()
    communicator.open(LocalTransport(), Placement(1), schedule, SEED)
    shown = []
    for step in range(STEPS):
        sync = communicator.at(step)
        sync(torch.zeros(1, 1))
        shown.append((bool(sync), *(sync.coin(name) for name in schedule.others)))
    return shown


PROXSKIP = ProxSkip(lr=0.1, p=0.3)
SVRG = ProxSkipLSVRGDA(lr=0.05, p=0.3, q=0.2)


def proxskip_steps() -> Iterator[Fields]:
    shown = coins(PROXSKIP)
    return proxskip(sample_operator, Z0, CLIENTS, STEPS, 0.1, 0.3, lambda t: shown[t][0])


def proxskip_average_steps() -> Iterator[Fields]:
    visited = []
    for fields in proxskip_steps():
        visited.append(fields["x"])
        yield {**fields, "x_o": np.mean(visited, axis=0)}


def svrg_steps() -> Iterator[Fields]:
    shown = coins(SVRG)
    return proxskip_lsvrgda(
        sample_operator,
        full_operator,
        Z0,
        CLIENTS,
        STEPS,
        gamma=0.05,
        p=0.3,
        theta=lambda t: shown[t][0],
        zeta=lambda t: shown[t][1],
    )


@dataclass(frozen=True)
class Trajectory:
    """An algorithm on a problem, and the transcription that must agree with it."""

    algorithm: Algorithm[Any, Any]
    problem: Problem[Oracle]
    transcription: Callable[[], Iterator[Fields]]
    steps: int = STEPS


PERIOD = {"lr": 0.1, "local_steps": 7}
INNER = {"local_steps": 7, "H": 3, "eta": 0.1, "gamma": 0.05}

MINIMISATION = MinimisationProblem(loss, torch.from_numpy(X0))
MINIMAX = MinimaxProblem(game, torch.from_numpy(X0), torch.from_numpy(Y0))
COMPOSITIONAL = CompositionalProblem(inner, game, torch.from_numpy(X0), torch.from_numpy(Y0))

STAGES = {"local_steps": 7, "decay_at": (0.5, 0.75), "total_steps": STEPS}
WEIGHTS = {"beta_x": 1.5, "beta_y": 1.2}


def staged(first: float) -> Callable[[int], float]:
    """Divided by 10 at 50 % and 75 % of 200 steps, or the next start of a round of 7."""
    return lambda t: first / 10 ** ((t >= 105) + (t >= 154))


def constant(value: float) -> Callable[[int], float]:
    return lambda t: value


def compositional_steps(decays: str) -> Iterator[Fields]:
    """Either eta or both gammas fall."""
    eta, gamma = (staged, constant) if decays == "eta" else (constant, staged)
    rates = {"eta": eta(0.4), "gamma_x": gamma(0.3), "gamma_y": gamma(0.5)}
    functions = inner_and_jacobian, gradients
    return localscgdam(*functions, X0, Y0, CLIENTS, STEPS, 7, alpha=2.0, **WEIGHTS, **rates)


def compositional_trajectory(decays: str) -> Trajectory:
    numbers = {"eta": 0.4, "gamma_x": 0.3, "gamma_y": 0.5, "alpha": 2.0, **WEIGHTS}
    algorithm = LocalSCGDAM(**numbers, **STAGES, decays=decays)
    return Trajectory(algorithm, COMPOSITIONAL, lambda: compositional_steps(decays))


def momentum_trajectory(policy: str) -> Trajectory:
    numbers = {"momentum": 0.6, "momentum_sync": policy, "local_steps": 7}
    algorithm = LocalSGDM(lr=0.1, **numbers, decay_at=(0.5, 0.75), total_steps=STEPS)
    steps = CLIENTS, STEPS, staged(0.1)
    return Trajectory(algorithm, MINIMISATION, lambda: localsgdm(gradient, X0, *steps, **numbers))


def scaffold_trajectory(option: int) -> Trajectory:
    numbers = {"lr": 0.1, "lr_server": 0.8, "local_steps": 7, "option": option}
    return Trajectory(
        Scaffold(**numbers, decay_at=()),
        MINIMISATION,
        lambda: scaffold(gradient, X0, CLIENTS, STEPS, **numbers),
    )


def coda_trajectory(output: str) -> Trajectory:
    stages = [(105, 0.1), (49, 0.01), (100, 0.001)]  # the run ends within the last
    return Trajectory(
        CoDA(lr=0.1, prox_weight=0.5, stage_output=output, **STAGES),
        MINIMAX,
        lambda: islice(
            coda(gradients, X0, Y0, CLIENTS, stages, 7, gamma=2.0, output=output), STEPS
        ),
    )


# The min-max methods on the finite sum, where the same sample can be taken at two points.

FIRST = 1 << 20
"""The number of the first draw of `init`."""


def players(F: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return F[:3], -F[3:]


def sampled(
    client: int, x: np.ndarray, y: np.ndarray, t: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    return players(sample_operator(client, np.concatenate([x, y]), t, k))


def full(client: int, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return players(full_operator(client, np.concatenate([x, y])))


STEP_SIZES = {"lr_x": 0.1, "lr_y": 0.07}
PERIODIC = {**STEP_SIZES, "local_steps": 7}
SHORT = 60  # eight rounds of seven steps, and a bit
START = (X0, Y0, CLIENTS, SHORT)
ETA, ALPHA, BETA = Decreasing(2.0, 9.0, 1 / 3), Decreasing(2.0, 9.0, 2 / 3), 0.2


def fgda_steps(q: int = 7, **choices: Any) -> Iterator[Fields]:
    return listing.fgda(
        sampled,
        *START,
        q=q,
        gamma=0.1,
        lam=0.07,
        eta=lambda t: 2 / (8 + t) ** (1 / 3),
        alpha=lambda t: 2 / (8 + t) ** (2 / 3),
        beta=lambda t: 0.2,
        first=FIRST,
        **choices,
    )


def adafgda_steps(q: int) -> Iterator[Fields]:
    matrices = {"matrix_x": listing.Adam(0.8, 0.5), "matrix_y": listing.AdaBelief(0.7, 0.4)}
    return fgda_steps(q, **matrices)


def momentum_steps(S: int | None) -> Iterator[Fields]:
    rates = {"eta_x": 0.1, "eta_y": 0.07, "alpha": 0.8, "beta": 0.5}
    return momentum_local_sgda(sampled, *START, **rates, K=7, first=FIRST, S=S)


def cdma_steps(full: FullGradients | None) -> Iterator[Fields]:
    return cdma(sampled, full, *START, **STEP_SIZES, e=0.4, a0=2.0, K=7, first=FIRST)


STORM = {**PERIODIC, "eta": ETA, "alpha": ALPHA, "beta": BETA}
MOMENTUM = {**PERIODIC, "alpha": 0.8, "beta": 0.5}
MINIMAX_METHODS = {
    "local_sgda_plus": Trajectory(
        LocalSGDAPlus(**PERIODIC, snapshot_every=21),
        SUM,
        lambda: local_sgda_plus(sampled, *START, **STEP_SIZES, K=7, S=21),
    ),
    "momentum_local_sgda": Trajectory(
        MomentumLocalSGDA(**MOMENTUM), SUM, lambda: momentum_steps(None)
    ),
    "momentum_local_sgda_plus": Trajectory(
        MomentumLocalSGDAPlus(**MOMENTUM), SUM, lambda: momentum_steps(49)
    ),
    **{
        f"fgda-{reading}": Trajectory(
            FGDA(**STORM, sync_estimator=reading), SUM, partial(fgda_steps, reading=reading)
        )
        for reading in READINGS
    },
    **{
        name: Trajectory(
            AdaFGDA(
                **{**STORM, "local_steps": q},
                matrix_x=Adam(0.8, 0.5),
                matrix_y=AdaBelief(0.7, 0.4),
            ),
            SUM,
            partial(adafgda_steps, q),
        )
        for name, q in (("adafgda", 7), ("adafgda-one-local-step", 1))
    },
    **{
        f"sagda-{sample}": Trajectory(
            SAGDA(**PERIODIC, server_lr=0.9, cv_sample=sample),
            SUM,
            partial(
                sagda, sampled, *START, **STEP_SIZES, server_lr=0.9, K=7, first=FIRST, anew=anew
            ),
        )
        for sample, anew in (("round", False), ("step", True))
    },
    "cdma-full": Trajectory(CDMA(**PERIODIC, power=0.4, a0=2.0), SUM, lambda: cdma_steps(full)),
    "cdma-sample": Trajectory(
        CDMA(**PERIODIC, power=0.4, a0=2.0, gradients="sample"), SUM, lambda: cdma_steps(None)
    ),
    "fednest": Trajectory(
        FedNest(**STEP_SIZES, inner_rounds=2, local_steps=2),
        SUM,
        lambda: fednest(sampled, full, *START, alpha=0.1, beta=0.07, T=2, tau=2),
    ),
    "fednest-sample": Trajectory(
        FedNest(gradients="sample", **STEP_SIZES, inner_rounds=2, local_steps=2),
        SUM,
        lambda: fednest(sampled, None, *START, alpha=0.1, beta=0.07, T=2, tau=2),
    ),
    "codasca": Trajectory(
        CODASCA(**PERIODIC, gamma=4.0, stage=25),  # ends with its round, at 28
        SUM,
        lambda: codasca(sampled, *START, **STEP_SIZES, gamma=4.0, T0=28, K=7),
    ),
}

TRAJECTORIES = {
    "fedavg": Trajectory(
        FedAvg(lr=0.1, local_steps=7),
        MINIMISATION,
        lambda: fedavg(gradient, X0, CLIENTS, STEPS, lr=0.1, local_steps=7),
    ),
    "local_sgda": Trajectory(
        LocalSGDA(lr_x=0.1, lr_y=0.2, local_steps=7),
        MINIMAX,
        lambda: local_sgda(gradients, X0, Y0, CLIENTS, STEPS, lr_x=0.1, lr_y=0.2, local_steps=7),
    ),
    "lsgd": Trajectory(
        LSGD(**PERIOD), SUM, lambda: lsgd(sample_operator, Z0, CLIENTS, STEPS, **PERIOD)
    ),
    "gda": Trajectory(
        GDA(lr=0.1), SUM, lambda: lsgd(sample_operator, Z0, CLIENTS, STEPS, lr=0.1, local_steps=1)
    ),
    "lesgd": Trajectory(
        LESGD(**PERIOD), SUM, lambda: lesgd(sample_operator, Z0, CLIENTS, STEPS, **PERIOD)
    ),
    "eg": Trajectory(
        EG(lr=0.1), SUM, lambda: lesgd(sample_operator, Z0, CLIENTS, STEPS, lr=0.1, local_steps=1)
    ),
    "lippax": Trajectory(
        LIPPAX(lr=0.1, inner_lr=0.05, inner_steps=3, local_steps=7),
        SUM,
        lambda: lippax(sample_operator, Z0, CLIENTS, STEPS, **INNER),
    ),
    "slippax": Trajectory(
        SLIPPAX(lr=0.1, inner_lr=0.05, inner_steps=3, delta=0.2, local_steps=7),
        SUM,
        lambda: lippax(sample_operator, Z0, CLIENTS, STEPS, **INNER, delta=0.2, s=normal),
    ),
    "lde": Trajectory(
        LDE(**PERIOD), SUM, lambda: lde(sample_operator, Z0, CLIENTS, STEPS, **PERIOD)
    ),
    "lde-composite": Trajectory(
        LDE(**PERIOD),
        COMPOSITE_SUM,
        lambda: lde(sample_operator, Z0, CLIENTS, STEPS, **PERIOD, mirror=composite_mirror),
    ),
    "local_seg": Trajectory(
        LocalSEG(**PERIOD), SUM, lambda: local_seg(sample_operator, Z0, CLIENTS, STEPS, **PERIOD)
    ),
    "fedgda_gt": Trajectory(
        FedGDAGT(**PERIOD), SUM, lambda: fedgda_gt(full_operator, Z0, CLIENTS, STEPS, **PERIOD)
    ),
    **{name: replace(entry, steps=SHORT) for name, entry in MINIMAX_METHODS.items()},
    "localscgdam": compositional_trajectory(decays="eta"),
    "localscgdam-gamma": compositional_trajectory(decays="gamma"),
    "localscgdam-network": Trajectory(
        LocalSCGDAM(local_steps=4, decay_at=()),
        network.PROBLEM,
        network.localscgdam_steps,
        network.STEPS,
    ),
    "localsgdam": Trajectory(
        LocalSGDAM(eta=0.4, gamma_x=0.3, gamma_y=0.5, **WEIGHTS, local_steps=7, decay_at=()),
        MINIMAX,
        lambda: localsgdam(gradients, X0, Y0, CLIENTS, STEPS, 7, 0.4, 0.3, 0.5, **WEIGHTS),
    ),
    "localsgdm": momentum_trajectory("average"),
    "localsgdm_rl": Trajectory(ratio.ALGORITHM, ratio.LOGISTIC, ratio.transcribed, ratio.STEPS),
    "localsgdm-keep": momentum_trajectory("keep"),
    "localsgdm-reset": momentum_trajectory("reset"),
    "fedprox": Trajectory(
        FedProx(mu=0.3, **PERIOD, decay_at=()),
        MINIMISATION,
        lambda: fedprox(gradient, X0, CLIENTS, STEPS, mu=0.3, **PERIOD),
    ),
    "scaffold": scaffold_trajectory(option=2),
    "scaffold-1": scaffold_trajectory(option=1),
    "coda": coda_trajectory(output="average"),
    "coda-last": coda_trajectory(output="last"),
    "fedbio": Trajectory(
        FedBiO(lr=0.1, inner_lr=0.2, hypergradient=NEUMANN, local_steps=7),
        BILEVEL,
        bilevel_steps(fedbio, neumann_phi),
    ),
    "fedbio-exact-fit": Trajectory(
        FedBiO(
            lr=0.1,
            inner_lr=0.2,
            hypergradient=ExactHypergradient("dense"),
            fit_from=42,
            fit_lr=0.3,
            local_steps=7,
        ),
        BILEVEL,
        bilevel_steps(fedbio, exact_phi, fit_from=42, fit_lr=0.3),
    ),
    "fedbioacc": Trajectory(
        FedBiOAcc(lr=0.1, inner_lr=0.2, hypergradient=NEUMANN, local_steps=7, **VARIANCE),
        BILEVEL,
        bilevel_steps(fedbioacc, neumann_phi, **VARIANCE, average_old_point=True),
    ),
    "fedbioacc-local": Trajectory(
        FedBiOAcc(
            lr=0.1,
            inner_lr=0.2,
            hypergradient=ExactHypergradient("cg", tolerance=1e-14),
            old_point="local",
            local_steps=7,
            **VARIANCE,
        ),
        BILEVEL,
        bilevel_steps(fedbioacc, exact_phi, **VARIANCE, average_old_point=False),
    ),
    "fednest_bilevel": Trajectory(
        FedNestBilevel(
            lr=0.1, inner_lr=0.07, inner_rounds=2, terms=3, neumann_lr=0.25, local_steps=2
        ),
        SHARED,
        lambda: fednest_bilevel(
            derivatives, X0, Y0, CLIENTS, STEPS, alpha=0.1, beta=0.07, T=2, N=3, ell=4.0, tau=2
        ),
    ),
    "fedreg": Trajectory(
        FedReg(lr=0.1, weight=0.5, local_steps=7),
        GROUPS,
        lambda: fedreg(mean_loss, disparity, X0, CLIENTS, STEPS, lr=0.1, weight=0.5, local_steps=7),
    ),
    "fedminmax": Trajectory(
        FedMinMax(lr=0.1, weight_lr=0.05),
        GROUPS,
        lambda: fedminmax(group_risk, COUNTS, X0, STEPS, lr=0.1, weight_lr=0.05),
    ),
    "fcfl": Trajectory(
        FCFL(lr=0.02, budget=0.5, first_stage=65, temperature=0.5),
        GROUPS,
        lambda: fcfl(
            *(mean_loss, disparity, X0, CLIENTS, STEPS),
            lr=0.02,
            budget=0.5,
            first_stage=65,
            temperature=0.5,
        ),
    ),
    "proxskip": Trajectory(PROXSKIP, SUM, proxskip_steps),
    "proxskip_average": Trajectory(
        ProxSkip(lr=0.1, p=0.3, averages=True), SUM, proxskip_average_steps
    ),
    "averaged": Trajectory(Averaged(PROXSKIP), SUM, proxskip_average_steps),
    "proxskip_lsvrgda": Trajectory(SVRG, SUM, svrg_steps),
}


def trajectory(name: str) -> list[Fields]:
    """The states of the hosted clients after each step."""
    chosen = TRAJECTORIES[name]
    with connected() as world:
        drive = Drive(Case(chosen.algorithm, chosen.problem), world.transport)
        states = [state.tensors() for state in drive.states(chosen.steps)][1:]
    return [{field: rows.numpy().copy() for field, rows in state.items()} for state in states]


def trajectories() -> dict[str, list[Fields]]:
    return {name: trajectory(name) for name in TRAJECTORIES}


@pytest.fixture(scope="module", params=[1, 4], ids=["1 process", "4 processes"])
def walked(request: pytest.FixtureRequest, ranks: Ranks) -> list[dict[str, list[Fields]]]:
    """All trajectories, by rank."""
    return ranks(request.param, trajectories)


def test_every_algorithm_has_a_transcription() -> None:
    exported = [value for value in vars(algorithms).values() if inspect.isclass(value)]
    concrete = {v for v in exported if issubclass(v, Algorithm) and not inspect.isabstract(v)}
    assert concrete <= {type(entry.algorithm) for entry in TRAJECTORIES.values()}


@pytest.mark.parametrize("name", list(TRAJECTORIES))
def test_every_step_of_every_client_is_the_pseudocodes_to_1e_10(
    walked: list[dict[str, list[Fields]]], name: str
) -> None:
    expected = list(TRAJECTORIES[name].transcription())
    assert len(expected) == TRAJECTORIES[name].steps
    for t, fields in enumerate(expected):
        for field, rows in fields.items():
            mine = np.concatenate([answer[name][t][field] for answer in walked])
            np.testing.assert_allclose(mine, rows, rtol=1e-10, atol=1e-10, err_msg=f"{field}, {t}")


# By hand: three variables, two clients, two steps of which the second averages.


def by_hand(algorithm: Algorithm[Any, Any], problem: Problem[Oracle], steps: int) -> list[Any]:
    drive = Drive(Case(algorithm, problem), LocalTransport(), clients=2)
    return [torch.cat(list(s.tensors().values()), dim=1).tolist() for s in drive.states(steps)]


def test_two_steps_of_fedavg_by_hand() -> None:
    targets = torch.tensor([[1.0, 2.0, 3.0], [3.0, 0.0, -1.0]], dtype=torch.float64)
    problem = MinimisationProblem(
        lambda x, client, rng: (x - targets[client]).square().sum() / 2, torch.zeros(3)
    )
    start, first, second = by_hand(FedAvg(lr=0.5, local_steps=2), problem, steps=2)
    assert start == [[0, 0, 0], [0, 0, 0]]
    # Half way to the target: [1, 2, 3] / 2 and [3, 0, -1] / 2.
    assert first == [[0.5, 1.0, 1.5], [1.5, 0.0, -0.5]]
    # Three quarters: [0.75, 1.5, 2.25] and [2.25, 0, -0.75]; their mean is
    assert second == [[1.5, 0.75, 0.75], [1.5, 0.75, 0.75]]


def test_two_steps_of_local_sgda_by_hand() -> None:
    def saddle(x: Tensor, y: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        common = x.square().sum() / 2 - y.square().sum() / 2
        return common + (x[0] * y[0] if client == 0 else 2 * x[0] - x[1] * y[0])

    problem = MinimaxProblem(saddle, torch.tensor([1.0, 2.0]), torch.tensor([3.0]))
    algorithm = LocalSGDA(lr_x=0.1, lr_y=0.2, local_steps=2)
    start, first, second = by_hand(algorithm, problem, steps=2)
    assert start == [[1, 2, 3], [1, 2, 3]]
    # Client 0: gx = (x1 + y, x2) = (4, 2), gy = x1 - y = -2.
    # Client 1: gx = (x1 + 2, x2 - y) = (3, -1), gy = -x2 - y = -5.
    assert first[0] == pytest.approx([0.6, 1.8, 2.6], abs=1e-15)
    assert first[1] == pytest.approx([0.7, 2.1, 2.0], abs=1e-15)
    # Client 0: gx = (3.2, 1.8), gy = -2    -> (0.28, 1.62, 2.20).
    # Client 1: gx = (2.7, 0.1), gy = -4.1  -> (0.43, 2.09, 1.18).
    for row in second:
        assert row == pytest.approx([0.355, 1.855, 1.69], abs=1e-15)


# One communication step of the methods for operators, with F_0(z) = z and F_1(z) = z - (4, 0, -4)
# from z = (1, 1, 1) with step 1/2. Plain steps lead to (1, 1, 1)/2 and (5, 1, -3)/2.

TARGET = torch.tensor([4.0, 0.0, -4.0], dtype=torch.float64)
TWO_CLIENTS = VariationalProblem(lambda z, client, rng: z - client * TARGET, torch.ones(3), split=2)
HALF = {"lr_x": 0.5, "lr_y": 0.5, "local_steps": 1}
BY_HAND = {
    # The mean of the two.
    "gda": (GDA(lr=0.5), [1.5, 0.5, -0.5]),
    "lsgd": (LSGD(lr=0.5, local_steps=1), [1.5, 0.5, -0.5]),
    # With one local step the correction makes both take the mean step.
    "fedgda_gt": (FedGDAGT(lr=0.5, local_steps=1), [1.5, 0.5, -0.5]),
    # From h = 0 and with p = 1: the mean.
    "proxskip": (ProxSkip(lr=0.5, p=1.0), [1.5, 0.5, -0.5]),
    "proxskip_lsvrgda": (ProxSkipLSVRGDA(lr=0.5, p=1.0, q=1.0), [1.5, 0.5, -0.5]),
    # The mean operator is (-1, 1, 3); these take that step, or half of it.
    "local_sgda_plus": (LocalSGDAPlus(**HALF), [1.5, 0.5, -0.5]),
    "momentum_local_sgda": (MomentumLocalSGDA(**HALF, alpha=1.0, beta=0.5), [1.5, 0.5, -0.5]),
    "momentum_local_sgda_plus": (
        MomentumLocalSGDAPlus(**HALF, alpha=0.5, beta=0.5),
        [1.25, 0.75, 0.25],
    ),
    "fgda": (FGDA(**HALF, eta=1.0, alpha=0.5, beta=0.5), [1.5, 0.5, -0.5]),
    "sagda": (SAGDA(**HALF), [1.5, 0.5, -0.5]),
    "cdma": (CDMA(**HALF), [1.5, 0.5, -0.5]),
    "fednest": (FedNest(**HALF), [1.5, 0.5, -0.5]),
    "codasca": (CODASCA(**HALF), [1.5, 0.5, -0.5]),
    # Divided by A = (2, 2) and B = 4.
    "adafgda": (
        AdaFGDA(**HALF, matrix_x=Adam(0.0, 1.0), matrix_y=Adam(0.0, 1.0)),
        [1.25, 0.75, 0.625],
    ),
    # The operators at that mean lead to (0.25, 0.75, 1.25) and (2.25, 0.75, -0.75).
    "eg": (EG(lr=0.5), [1.25, 0.75, 0.25]),
    "lesgd": (LESGD(lr=0.5, local_steps=1), [1.25, 0.75, 0.25]),
    "lde": (LDE(lr=0.5, local_steps=1), [1.25, 0.75, 0.25]),
    # The operators at each client's own half point lead to (3, 3, 3)/4 and (7, 3, -1)/4.
    "local_seg": (LocalSEG(lr=0.5, local_steps=1), [1.25, 0.75, 0.25]),
    # An inner step of 1/4 leads to (3, 3, 3)/4 and (7, 3, -1)/4; the operators there lead to
    # (5, 5, 5)/8 and (17, 5, -7)/8.
    "lippax": (
        LIPPAX(lr=0.5, inner_lr=0.25, inner_steps=1, local_steps=1),
        [1.375, 0.625, -0.125],
    ),
    "slippax": (
        SLIPPAX(lr=0.5, inner_lr=0.25, inner_steps=1, delta=0.0, local_steps=1),
        [1.375, 0.625, -0.125],
    ),
}


@pytest.mark.parametrize("name", list(BY_HAND))
def test_a_communication_step_of_a_method_for_operators_by_hand(name: str) -> None:
    algorithm, expected = BY_HAND[name]
    drive = Drive(Case(algorithm, TWO_CLIENTS), LocalTransport(), clients=2)
    *_, state = drive.states(1)
    for row in algorithm.solution(state).tolist():
        assert row == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("local_steps", [1, 2])
def test_the_first_matrix_of_adafgda_is_the_rule_applied_once_to_the_first_estimator(
    local_steps: int,
) -> None:
    # w_1 = (-1, 1) and v_1 = -3 on average: a_1 = (1 - 0.75) w_1^2, A_1 = sqrt(a_1) + 0.5.
    rule = Adam(0.75, 0.5)
    steps = {"lr_x": 0.5, "lr_y": 0.5, "local_steps": local_steps}
    drive = Drive(
        Case(AdaFGDA(**steps, matrix_x=rule, matrix_y=rule), TWO_CLIENTS),
        LocalTransport(),
        clients=2,
    )
    for state in drive.states(1):
        fields = state.tensors()
        assert fields["A"].tolist() == [[1, 1]] * 2
        assert fields["B"].tolist() == [[2]] * 2


def test_the_control_variates_of_proxskip_by_hand() -> None:
    drive = Drive(Case(BY_HAND["proxskip"][0], TWO_CLIENTS), LocalTransport(), clients=2)
    *_, state = drive.states(1)
    # p / lr = 2 times what the mean changed: (1, 0, -1) and (-1, 0, 1).
    assert state.tensors()["h"].tolist() == [[2, 0, -2], [-2, 0, 2]]


# Reductions and fixed points.


def test_fedavg_with_one_local_step_is_gradient_descent_on_the_mean() -> None:
    drive = Drive(Case(FedAvg(lr=0.2, local_steps=1), MINIMISATION), LocalTransport())
    x = X0
    for t, state in enumerate(list(drive.states(20))[1:]):
        x = x - 0.2 * np.mean([gradient(i, x, t) for i in range(CLIENTS)], axis=0)
        np.testing.assert_allclose(state.tensors()["x"][3], x, atol=1e-13)


def error_after(steps: int, local_steps: int) -> float:
    """The squared distance of Local SGDA's mean to the solution of a game without noise."""
    algorithm = LocalSGDA(lr_x=0.3, lr_y=0.3, local_steps=local_steps)
    drive = Drive(Case(algorithm, QuadraticGame(dim=2, samples=4)), LocalTransport())
    *_, last = drive.states(steps)
    unmetered = drive.communicator.unmetered()
    return drive.oracle.evaluate(unmetered(algorithm.solution(last)), unmetered)["relative_error"]


def test_local_sgda_solves_the_game_with_one_local_step_and_stalls_beside_it_with_many() -> None:
    assert error_after(2000, local_steps=1) < 1e-20
    assert error_after(2000, local_steps=10) > 1e-5
