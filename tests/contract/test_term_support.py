"""Composite terms and constraints: an algorithm solves the problem with them, or refuses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import COMPOSITE, ROBUST, SEED, SIMPLEX, Case, Drive
from torch import Tensor

import fedsys
from fedsys.algorithms import (
    CDMA,
    CODASCA,
    EG,
    FGDA,
    GDA,
    LDE,
    LESGD,
    LIPPAX,
    LSGD,
    SAGDA,
    SLIPPAX,
    AdaFGDA,
    Adam,
    CoDA,
    FedBiO,
    FedBiOAcc,
    FedGDAGT,
    FedNest,
    FedNestBilevel,
    LocalSEG,
    LocalSGDA,
    LocalSGDAM,
    LocalSGDAPlus,
    MomentumLocalSGDA,
    MomentumLocalSGDAPlus,
    ProxSkip,
    ProxSkipLSVRGDA,
    known_algorithms,
)
from fedsys.communication import LocalTransport
from fedsys.core.algorithm import Algorithm, applies_terms
from fedsys.core.errors import InputError
from fedsys.core.random import generator
from fedsys.core.site import Site
from fedsys.problems import ExactHypergradient, QuadraticBilevel, SharedQuadraticBilevel
from fedsys.problems.custom.term_blocks import Shaped
from fedsys.problems.games.affine import AffineOracle
from fedsys.problems.terms import L1, L2, Ball, Box, NuclearNorm, Simplex, Term, maps_of_terms

# Games whose solution is on the boundary of their constraints, and not sparse by chance.

DIM, CLIENTS = 4, 4
TERMS: dict[str, tuple[Term, Term]] = {
    "l1, ball": (L1(0.5), Ball(0.4)),
    "box, simplex": (Box(-0.2, 0.3), Simplex()),
    "l2, nuclear norm": (L2(0.8), Shaped(NuclearNorm(0.6), (2, 2))),
}


@dataclass(frozen=True)
class TermGame:
    """F_i(z) = M_i z + b_i, strongly monotone, with a term on each player."""

    terms: str
    clients_differ: bool

    def game(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """(M_i, b_i)."""
        stream = generator(0, "term game", client if self.clients_differ else 0)
        skew = stream.standard_normal((2 * DIM, 2 * DIM))
        definite = stream.standard_normal((2 * DIM, 2 * DIM))
        M = 0.1 * (skew - skew.T) + 0.03 * definite @ definite.T + 0.5 * np.eye(2 * DIM)
        return M, 1.5 * stream.standard_normal(2 * DIM)

    def oracle(self, site: Site) -> AffineOracle:
        """The games of the clients hosted at a site; both players start inside."""
        games = [(M[None], b[None]) for M, b in map(self.game, site.hosted)]
        players = [term.prox(torch.zeros(1, DIM), 1.0)[0] for term in TERMS[self.terms]]
        return AffineOracle(site, games, split=DIM, z0=torch.cat(players), terms=TERMS[self.terms])


def soft_threshold(v: np.ndarray, step: float) -> np.ndarray:
    return np.sign(v) * np.maximum(np.abs(v) - 0.5 * step, 0)


def onto_ball(v: np.ndarray, step: float) -> np.ndarray:
    return v * min(1.0, 0.4 / float(np.linalg.norm(v)))


def onto_simplex(v: np.ndarray, step: float) -> np.ndarray:
    low, high = v.min() - 1, v.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


def shrunk(v: np.ndarray, step: float) -> np.ndarray:
    U, values, Vh = np.linalg.svd(v.reshape(2, 2))
    return ((U * np.maximum(values - 0.6 * step, 0)) @ Vh).ravel()


MAPS: dict[str, tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]] = {
    "l1, ball": (soft_threshold, onto_ball),
    "box, simplex": (lambda v, step: v.clip(-0.2, 0.3), onto_simplex),
    "l2, nuclear norm": (lambda v, step: v / (1 + 0.8 * step), shrunk),
}


@cache
def solved(problem: TermGame) -> np.ndarray:
    """z*, by a long run of the forward-backward method in NumPy."""
    games = [problem.game(client) for client in range(CLIENTS)]
    M, b = np.mean([g[0] for g in games], axis=0), np.mean([g[1] for g in games], axis=0)
    first, second = MAPS[problem.terms]
    z = np.zeros(2 * DIM)
    for _ in range(500):
        v = z - 0.3 * (M @ z + b)
        z = np.concatenate([first(v[:DIM], 0.3), second(v[DIM:], 0.3)])
    return z


def distance(algorithm: Algorithm[Any, Any], problem: TermGame, steps: int) -> float:
    """From the clients' mean point after some steps to z*."""
    drive = Drive(Case(algorithm, problem), LocalTransport(), CLIENTS)
    *_, last = drive.states(steps)
    z = algorithm.solution(last).mean(0).numpy()
    return float(np.linalg.norm(z - solved(problem)))


STEPS = {"lr_x": 0.2, "lr_y": 0.2}
TRACKING = {"eta": 1.0, "alpha": 0.0, "beta": 0.0}
EXACT: dict[str, Algorithm[Any, Any]] = {
    "gda": GDA(lr=0.3),
    "eg": EG(lr=0.3),
    "fedgda_gt, K = 1": FedGDAGT(lr=0.2, local_steps=1),
    "fedgda_gt, K = 5": FedGDAGT(lr=0.1, local_steps=5),
    "proxskip": ProxSkip(lr=0.3, p=0.5),
    "proxskip_average": ProxSkip(lr=0.3, p=0.5, averages=True),
    "proxskip_lsvrgda": ProxSkipLSVRGDA(lr=0.3, p=0.5, q=0.5),
    "sagda": SAGDA(**STEPS, local_steps=3),
    "sagda, beyond the mean": SAGDA(lr_x=0.1, lr_y=0.1, server_lr=1.5, local_steps=3),
    "cdma": CDMA(**STEPS, power=0.0, local_steps=3),
    "fednest": FedNest(**STEPS, local_steps=2),
    "codasca": CODASCA(**STEPS, gamma=100.0, stage=30, decay=1.0, local_steps=3),
    "fgda": FGDA(lr_x=0.1, lr_y=0.1, **TRACKING, local_steps=3),
    "adafgda": AdaFGDA(
        lr_x=0.1, lr_y=0.1, **TRACKING, matrix_x=Adam(floor=0.2), matrix_y=Adam(floor=0.2),
        local_steps=3,
    ),
}  # fmt: skip
DRIFTING: dict[str, Algorithm[Any, Any]] = {
    "lsgd": LSGD(lr=0.2, local_steps=3),
    "lesgd": LESGD(lr=0.2, local_steps=3),
    "local_seg": LocalSEG(lr=0.2, local_steps=3),
    "local_sgda": LocalSGDA(**STEPS, local_steps=3),
    "local_sgda_plus": LocalSGDAPlus(**STEPS, snapshot_every=3, local_steps=3),
    "momentum_local_sgda": MomentumLocalSGDA(**STEPS, alpha=0.5, beta=1.5, local_steps=3),
    "momentum_local_sgda_plus": MomentumLocalSGDAPlus(
        **STEPS, alpha=0.5, beta=1.5, snapshot_every=3, local_steps=3
    ),
    "localsgdam": LocalSGDAM(local_steps=3, decay_at=(), total_steps=300),
    "coda": CoDA(lr=0.2, prox_weight=0.01, local_steps=3, decay_at=(0.2, 0.4, 0.6, 0.8),
                 decay_by=1.0, total_steps=300, stage_output="last"),
}  # fmt: skip
games = pytest.mark.parametrize("terms", list(TERMS))


@games
@pytest.mark.parametrize("name", list(EXACT))
def test_a_method_without_drift_ends_at_the_solvers_solution_although_clients_differ(
    name: str, terms: str
) -> None:
    problem = TermGame(terms, clients_differ=True)
    if name == "adafgda" and "nuclear" in terms:
        with pytest.raises(InputError, match="NuclearNorm has no proximal map with a step size fo"):
            distance(EXACT[name], problem, 1)
    else:
        assert distance(EXACT[name], problem, 300) < 1e-5


@games
@pytest.mark.parametrize("name", list(DRIFTING))
def test_a_local_method_ends_at_the_solvers_solution_where_clients_agree(
    name: str, terms: str
) -> None:
    assert distance(DRIFTING[name], TermGame(terms, clients_differ=False), 300) < 1e-5


@games
def test_dual_extrapolation_approaches_the_solvers_solution(terms: str) -> None:
    """Its terms gain weight with every step: it converges, but not linearly."""
    problem = TermGame(terms, clients_differ=False)
    assert distance(LDE(lr=0.2, local_steps=3), problem, 900) < 0.01


def test_the_servers_long_step_of_sagda_stays_inside_the_constraints() -> None:
    algorithm = SAGDA(lr_x=0.4, lr_y=0.4, server_lr=3.0, local_steps=2)
    problem = TermGame("box, simplex", clients_differ=True)
    drive = Drive(Case(algorithm, problem), LocalTransport(), CLIENTS)
    for state in drive.states(20):
        x, y = algorithm.solution(state).split(DIM, dim=1)
        assert x.min() >= -0.2
        assert x.max() <= 0.3
        assert y.min() >= 0
        torch.testing.assert_close(y.sum(1), torch.ones(CLIENTS, dtype=y.dtype))


class BoxedBilevel:
    """A quadratic bilevel problem whose outer variable stays in a box."""

    def oracle(self, site: Site) -> Any:
        """The oracle of the clients hosted at a site."""
        oracle = QuadraticBilevel(dim=3, samples=5).oracle(site)
        oracle.prox_x = Box(-0.1, 0.2).prox  # type: ignore[method-assign]
        return oracle


@pytest.mark.parametrize("method", [FedBiO, FedBiOAcc])
def test_bilevel_methods_end_at_the_constrained_solution(method: type[Any]) -> None:
    options = {"hypergradient": ExactHypergradient(), "local_steps": 1}
    acc = {"delta": 1.0, "u": 8.0, "sigma": 0.01} if method is FedBiOAcc else {}
    algorithm = method(lr=0.2, inner_lr=0.5, **options, **acc)
    drive = Drive(Case(algorithm, BoxedBilevel()), LocalTransport(), 1)
    *_, last = drive.states(500)
    x = last.tensors()["x"]
    x_star = drive.oracle.x0
    for _ in range(800):
        slope = drive.oracle.hypergradient(x_star, drive.oracle.inner_solution(x_star))
        x_star = (x_star - 0.1 * slope).clamp(-0.1, 0.2)
    assert ((x_star == -0.1) | (x_star == 0.2)).any()
    torch.testing.assert_close(x, x_star, rtol=0, atol=1e-6)


class BoxedSharedBilevel:
    """A quadratic bilevel problem with a shared lower level; its outer variable stays in a box."""

    def oracle(self, site: Site) -> Any:
        """The oracle of the clients hosted at a site."""
        oracle = SharedQuadraticBilevel(dim=3, samples=5).oracle(site)
        oracle.prox_x = Box(-0.1, 0.2).prox  # type: ignore[method-assign]
        return oracle


def test_fednest_ends_at_the_constrained_solution_of_a_shared_lower_level() -> None:
    options = {"inner_rounds": 10, "terms": 60, "neumann_lr": 0.9, "local_steps": 1}
    algorithm = FedNestBilevel(lr=0.1, inner_lr=0.9, **options)
    drive = Drive(Case(algorithm, BoxedSharedBilevel()), LocalTransport(), 2)
    *_, last = drive.states(300)
    A, B, b, c, e = (part.mean(0) for part in drive.oracle.draw())
    x = drive.oracle.x0[0]
    for _ in range(800):
        y = torch.linalg.solve(A, B @ x + b)
        slope = 0.1 * (x - e) + B.mT @ torch.linalg.solve(A, y - c)
        x = (x - 0.1 * slope).clamp(-0.1, 0.2)
    assert ((x == -0.1) | (x == 0.2)).any()
    torch.testing.assert_close(last.tensors()["x"][0], x, rtol=0, atol=1e-6)


# What is not supported is refused.


@pytest.mark.parametrize("problem", [COMPOSITE, SIMPLEX], ids=["l1", "simplex"])
@pytest.mark.parametrize("algorithm", [LIPPAX(), SLIPPAX()], ids=lambda a: type(a).__name__)
def test_a_method_that_leaves_terms_out_is_refused_by_name_with_those_that_apply_them(
    algorithm: Algorithm[Any, Any], problem: Any
) -> None:
    with pytest.raises(InputError) as refusal:
        fedsys.run(problem, algorithm, clients=2, rounds=1)
    (line,) = str(refusal.value).splitlines()
    name = type(algorithm).__name__
    assert line.startswith(f"{name} does not support the composite term or constraint of ")
    assert f"{type(problem).__name__} (" in line
    assert "LDE or LESGD or LSGD" in line
    assert f" {name}" not in line


class OwnMap:
    """A user's oracle that overrides `prox` only."""

    def oracle(self, site: Site) -> AffineOracle:
        """A game without terms, and a map of its own."""
        oracle = AffineOracle(site, [(np.eye(2)[None], np.ones((1, 2)))] * len(site.hosted), 1)
        oracle.prox = lambda z, step: z.clamp(-1e9, 1e9)  # type: ignore[method-assign]
        return oracle


def test_a_map_that_a_method_never_asks_for_is_refused_even_if_it_changes_nothing_yet() -> None:
    for algorithm in (LocalSGDA(lr_x=0.1, lr_y=0.1), LIPPAX(lr=0.1), LDE(lr=0.1)):
        with pytest.raises(InputError, match="a proximal map of its own"):
            fedsys.run(OwnMap(), algorithm, clients=2, rounds=1)
    assert fedsys.run(OwnMap(), LESGD(lr=0.1, local_steps=2), clients=2, rounds=1).records


def test_every_algorithm_that_can_meet_a_term_applies_it_or_is_refused() -> None:
    """Those that support terms are among the solved cases above, so that a new one is as well."""
    solved_cases = {type(a) for a in (*EXACT.values(), *DRIFTING.values())} | {LDE, FedBiO}
    for algorithm in known_algorithms():
        if algorithm.term_maps:
            assert algorithm in solved_cases | {FedBiOAcc, FedNestBilevel}
    without = {a for a in known_algorithms() if not a.term_maps}
    assert {LIPPAX, SLIPPAX} <= without
    for algorithm in without:
        assert not applies_terms(algorithm, frozenset({"prox", "mirror", "prox_x", "prox_y"}))


def test_a_constraint_on_one_player_is_supported_by_the_methods_of_both() -> None:
    oracle = Drive(Case(LocalSGDA(lr_x=0.1, lr_y=0.1), ROBUST), LocalTransport()).oracle
    maps = maps_of_terms(oracle)
    assert maps == {"prox", "mirror", "prox_y"}
    assert applies_terms(LocalSGDA, maps)
    assert applies_terms(LESGD, maps)
    assert not applies_terms(FedBiO, maps)


# Steps of their own for each coordinate.


@pytest.mark.parametrize(
    "term", [L1(0.7), L2(1.3), Box(-0.5, 2.0), Ball(1.5), Simplex()], ids=lambda t: type(t).__name__
)
def test_a_proximal_map_with_a_step_for_each_coordinate_beats_every_other_point(term: Term) -> None:
    stream = np.random.default_rng(SEED)
    v = 2 * torch.from_numpy(stream.standard_normal((50, 4)))
    step = torch.from_numpy(stream.uniform(0.1, 5, (50, 4)))
    u = term.prox(v, step)

    def objective(w: Tensor) -> Tensor:
        return term.value(w) + ((w - v).square() / (2 * step)).sum(1)

    for size in np.logspace(-5, 1, 60):
        other = term.prox(u + size * torch.from_numpy(stream.standard_normal((50, 4))), 0.0)
        curvature = ((other - u).square() / (2 * step)).sum(1)
        assert (objective(other) - objective(u) - curvature).min() > -1e-9
    torch.testing.assert_close(term.prox(u, 0.0), u)
    same = term.prox(v, torch.full_like(v, 0.3))
    torch.testing.assert_close(same, term.prox(v, 0.3))
