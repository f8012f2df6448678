"""Theory step sizes of AdaFGDA, LocalSCGDAM and FedBiO: by hand, and on problems that know them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsys
from fedsys.algorithms import (
    FGDA,
    AdaBelief,
    AdaFGDA,
    Adam,
    FedBiO,
    Identity,
    LocalSCGDAM,
)
from fedsys.core.constants import Constants, Theory
from fedsys.core.errors import InputError
from fedsys.core.oracles import Oracle
from fedsys.core.placement import Placement
from fedsys.core.schedules import Decreasing
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems import (
    CompositionalProblem,
    ExactHypergradient,
    QuadraticBilevel,
    QuadraticGame,
    SyntheticSaddle,
    VariationalProblem,
)
from fedsys.theory import fedbio, localscgdam

ALL = {"lr_x": "theory", "lr_y": "theory", "eta": "theory", "alpha": "theory", "beta": "theory"}

# AdaFGDA: Theorem 1.

GAME = Theory(Constants(mu=0.5, mu_y=0.5, L=2.0, G=3.0), clients=4, rounds=10)


def test_adafgda_with_identity_matrices_has_the_numbers_of_fgda() -> None:
    plain = FGDA(**ALL, local_steps=5).tuned(GAME)
    adaptive = AdaFGDA(**ALL, matrix_x=Identity(), matrix_y=Identity(), local_steps=5).tuned(GAME)
    for name in ALL:
        assert getattr(adaptive, name) == getattr(plain, name), name


def test_adafgda_has_the_numbers_of_theorem_1() -> None:
    # rho_u = 1 + G = 4 and rho = min(0.5, sqrt(135 / 256)) = 0.5, K = 4, q = 5, kappa = 4.
    rules = {"matrix_x": Adam(floor=0.5), "matrix_y": Adam(floor=1.0)}
    tuned = AdaFGDA(**ALL, **rules, local_steps=5).tuned(GAME)
    lam = 3 * sqrt(20) / (32 * sqrt(2) * 0.5)
    c1 = 2 / 12 + 9 * 4 * 4 / (2 * 0.25 * 0.5)
    m = max(2, c1**3 * 4, 4 * (12 * sqrt(2) * lam * 5 * 2) ** 3 / 0.5**3, (4 * 2 * 4 * lam) ** 3)
    assert tuned.lr_y == pytest.approx(lam)
    assert isinstance(tuned.eta, Decreasing)
    assert isinstance(tuned.alpha, Decreasing)
    assert tuned.eta.offset == pytest.approx(m + 1)
    assert tuned.eta.scale == pytest.approx(4 ** (1 / 3))
    assert tuned.alpha.scale == pytest.approx(c1 * 4 ** (2 / 3))
    L = 2 * (1 + 2 / (2 * 0.5))
    Lambda = 1 / 16 + 4 * 4 / (4 * 0.25) + 16 * lam**2 * 4 / (4 * 0.25)
    gamma = min(
        lam * sqrt(20) / (4 * sqrt(2 * Lambda)),
        m ** (1 / 3) * 0.5 / (4 * L),
        lam * 0.5 / (16 * 4 * L),
        0.5 * 0.5 / (16 * 4 * 4),
        2 * lam * 0.25 * 0.5 / (27 * 4 * 4),
        2 * 0.5 / (8 * sqrt(3) * 2),
    )
    assert tuned.lr_x == pytest.approx(gamma)


def test_the_matrix_of_adabelief_may_be_twice_as_large() -> None:
    assert Adam(floor=0.5).bounds(3.0) == (0.5, 3.5)
    assert AdaBelief(floor=0.5).bounds(3.0) == (0.5, 6.5)


def test_a_rule_without_bounds_is_refused_in_one_line() -> None:
    class Own:
        def start(self, w: Tensor) -> Tensor:
            return w.new_zeros(1, len(w))

        def remember(self, memory: Tensor, w: Tensor) -> Tensor:
            return memory

        def diagonal(self, memory: Tensor) -> Tensor:
            return memory[0] + 1

    with pytest.raises(InputError, match="theory needs bounds of its matrices"):
        AdaFGDA(**ALL, matrix_x=Own()).tuned(GAME)


def test_adafgda_descends_with_the_steps_of_its_theorem() -> None:
    for problem in (SyntheticSaddle(dim=3), QuadraticGame(dim=3, samples=5)):
        result = fedsys.run(problem, AdaFGDA(**ALL), rounds=20, clients=4, dtype="float64")
        first, last = result.records[0], result.records[-1]
        assert last["operator_norm"] < first["operator_norm"]


def test_the_concavity_of_an_affine_game_is_that_of_its_max_player() -> None:
    # F_k = (10 x - t y, t x + y - b): the Hessian of -f in y is the identity.
    oracle = SyntheticSaddle(dim=2).oracle(Site(Placement(3), 0, torch.float64))
    assert oracle.constants(_sync()).mu_y == pytest.approx(1.0)


def _sync() -> Sync:
    from fedsys.communication import AllReduce, LocalTransport
    from fedsys.core.rounds import Every

    communicator = AllReduce()
    communicator.open(LocalTransport(), Placement(3), Every())
    return communicator.unmetered()


# LocalSCGDAM: Theorem 1 and Remark 1.

COMPOSED = Constants(mu_y=0.5, L=2.0, C_f=3.0, C_g=1.5, L_g=0.25)


def test_localscgdam_has_the_numbers_of_theorem_1() -> None:
    asked = {"eta": "theory", "gamma_x": "theory", "gamma_y": "theory"}
    theory = Theory(COMPOSED, clients=4, steps=10_000)
    tuned = LocalSCGDAM(**asked, alpha=2.0, beta_x=1.0, beta_y=1.5, local_steps=3).tuned(theory)
    gamma_y = min(1 / 12, 3 * 0.5 * 2.25 / 1600, 3 / 8)
    assert tuned.gamma_y == pytest.approx(gamma_y)
    gamma_x = min(
        2 * 0.5 / (100 * 2.25 * 2 * 5),  # sqrt(1 + 6 * 4) = 5
        1 / (32 * sqrt(1.5**4 * 4 + 9 / 16)),
        1.5 * 0.5 / (144 * 2.25 * 4),
        1 / (24 * 1.5 * sqrt(100 * 2.25 * 16 + 2 * 2.25 * 0.25)),
        gamma_y * 0.25 / (20 * 2.25 * 4),
    )
    assert tuned.gamma_x == pytest.approx(gamma_x)
    # sqrt(K / T) = 0.02 is below 1/alpha = 0.5 and the other limits.
    assert tuned.eta == pytest.approx(0.02)
    short = LocalSCGDAM(**asked, alpha=2.0, beta_x=1.0, beta_y=1.5, local_steps=3)
    assert short.tuned(replace(theory, steps=6)).eta == pytest.approx(0.5)
    assert localscgdam.eta(COMPOSED, (2.0,), 1.0, 1.0, 3, 1.0) == pytest.approx(
        min(1 / (2 * (2 * 2.25 * 4 / 0.5 + 0.75)), 1 / 180)
    )


def compositional() -> CompositionalProblem:
    """g_m(x) = 1.5 x and f_m(h, y) = h'y - y'y/4 + h'h/2: saddle point 0."""
    return CompositionalProblem(
        inner=lambda x, client, rng: 1.5 * x,
        outer=lambda h, y, client, rng: h @ y - y @ y / 4 + h @ h / 2,
        x=torch.ones(2),
        y=torch.ones(2),
    )


@dataclass(frozen=True)
class KnowsItsConstants:
    """A user's problem whose oracle returns constants."""

    problem: CompositionalProblem
    found: Constants

    def oracle(self, site: Site) -> Oracle:
        """Return the oracle of the hosted clients."""
        oracle = self.problem.oracle(site)
        oracle.constants = lambda sync: self.found  # type: ignore[method-assign]
        return oracle


def test_localscgdam_runs_with_the_constants_of_a_users_problem() -> None:
    asked = {"eta": "theory", "gamma_x": "theory", "gamma_y": "theory", "decay_at": ()}
    known = Constants(mu_y=0.5, L=2.0, C_g=1.5, L_g=0.0)
    result = fedsys.run(KnowsItsConstants(compositional(), known), LocalSCGDAM(**asked), rounds=3)
    assert result.algorithm.gamma_y == pytest.approx(min(1 / 12, 3 * 0.5 * 3.3**2 / 1600))
    with pytest.raises(InputError, match=r"eta=theory needs the constants of the problem"):
        fedsys.run(compositional(), LocalSCGDAM(eta="theory"), rounds=3)
    unbounded = KnowsItsConstants(compositional(), Constants(mu_y=0.5, L=2.0))
    with pytest.raises(InputError, match=r"gamma_x=theory has no value for this problem"):
        fedsys.run(unbounded, LocalSCGDAM(**asked), rounds=3)


# FedBiO: Theorem 5.1.


def test_fedbio_has_the_numbers_of_theorem_5_1() -> None:
    c = Constants(mu_y=0.5, L=2.0, C_g=1.0, L_g=0.0)
    # rho = 2, C = 2 + 4 = 6, L-bar = (2 + 6) 2 + 2 = 18.
    assert fedbio.smoothness(c) == pytest.approx(18)
    tuned = FedBiO(lr="theory", inner_lr="theory", local_steps=5).tuned(Theory(c, 3, steps=1000))
    gamma = 0.99 / 2
    assert tuned.inner_lr == pytest.approx(gamma)
    q, q_1, q_2 = 1 - 0.5 * gamma / 2, 1 + 0.5 * gamma / 4, 1 + 4 / (0.5 * gamma)
    kept = q_1 * q**5
    first = sqrt((1 - q) * (1 - kept) / (q_2 * kept)) / (2 * 18**2 * 5)
    delta = 0.99 * min(first, 1 / (12 * 18 * 5), 0.5 * gamma / 2, 1)
    assert tuned.lr == pytest.approx(delta / 10)


def test_bounded_gradients_count_where_the_second_derivatives_of_g_vary() -> None:
    # C = 2 + 4 + 3 * 0.1 (2 + 4) = 7.8; L-bar = (2 + 7.8) 2 + 2 + 3 * 0.1 (3 * 2 + 4) = 24.6.
    c = Constants(mu_y=0.5, L=2.0, C_g=1.0, C_f=3.0, L_g=0.1)
    assert fedbio.smoothness(c) == pytest.approx(24.6)


def test_the_constants_of_the_quadratic_bilevel_problem_are_exact() -> None:
    problem = QuadraticBilevel(dim=3, samples=4)
    oracle = problem.oracle(Site(Placement(3), 0, torch.float64))
    found = oracle.constants(_sync())
    A, B = (part.numpy() for part in oracle._means[:2])
    hessians = [np.block([[np.zeros((3, 3)), -b.T], [-b, a]]) for a, b in zip(A, B, strict=True)]
    assert found.mu_y == pytest.approx(min(np.linalg.eigvalsh(a)[0] for a in A))
    assert found.C_g == pytest.approx(max(np.linalg.norm(b, 2) for b in B))
    assert pytest.approx(max(1.0, *(np.linalg.norm(h, 2) for h in hessians))) == found.L
    assert found.L_g == 0


def test_fedbio_descends_with_the_steps_of_its_theorem() -> None:
    algorithm = FedBiO(lr="theory", inner_lr="theory", hypergradient=ExactHypergradient())
    result = fedsys.run(QuadraticBilevel(dim=3), algorithm, rounds=40, clients=3, dtype="float64")
    norms = [record["hypergradient_norm"] for record in result.records]
    assert norms[-1] < norms[0]


def test_a_problem_without_constants_is_refused_in_one_line() -> None:
    unknown = VariationalProblem(lambda z, client, rng: z, torch.ones(2))
    with pytest.raises(InputError, match="lr_x=theory needs the constants of the problem"):
        fedsys.run(unknown, AdaFGDA(**ALL), rounds=1)
