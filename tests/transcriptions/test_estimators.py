"""ProxSkip with each estimator, and on one node with a proximal map, against the pseudocode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from support.cases import SEED, Case, Drive

from fedsys.algorithms import (
    LSVRG,
    SAGA,
    Estimator,
    FullOperator,
    ProxSkip,
    ProxSkipLSVRGDA,
    Quantised,
)
from fedsys.algorithms.variational.estimators import quantise
from fedsys.communication import LocalTransport, SkipCoin
from fedsys.core.placement import Placement
from fedsys.core.random import BLOCK, generator
from fedsys.core.rounds import Coins
from fedsys.core.site import Site
from fedsys.problems.games.affine import AffineOracle
from fedsys.problems.terms import L1, NONE, Box, Term
from fedsys.theory.proxskip import quantisation_variance
from transcriptions.proxskip import proxskip_vip, proxskip_with, quantised, saga

N, SAMPLES, DIM, STEPS = 3, 4, 5, 120
GAMMA, P = 0.07, 0.3
stream = np.random.default_rng(11)
M = stream.standard_normal((N, SAMPLES, DIM, DIM)) / 4 + 0.6 * np.eye(DIM)
OFFSETS = stream.standard_normal((N, SAMPLES, DIM))
X0 = np.zeros(DIM)
Fields = dict[str, np.ndarray]


@dataclass(frozen=True)
class Games:
    """The affine operators M z + b above, with a number of samples per draw."""

    batch_size: int | None = 2
    terms: tuple[Term, Term] = (NONE, NONE)

    def oracle(self, site: Site) -> AffineOracle:
        """Return the oracle of the hosted clients."""
        games = [(M[i], OFFSETS[i]) for i in site.hosted]
        return AffineOracle(site, games, 2, batch_size=self.batch_size, terms=self.terms)


def F_ij(i: int, j: int, z: np.ndarray) -> np.ndarray:
    return M[i, j] @ z + OFFSETS[i, j]


def F_i(i: int, z: np.ndarray) -> np.ndarray:
    return M[i].mean(0) @ z + OFFSETS[i].mean(0)


def drawn(i: int, t: int) -> list[int]:
    picks = generator(SEED, "samples", i, t // BLOCK, 0).integers(SAMPLES, size=(BLOCK, 2))
    return [int(j) for j in picks[t % BLOCK]]


def draw(i: int, z: np.ndarray, t: int) -> np.ndarray:
    return np.mean([F_ij(i, j, z) for j in drawn(i, t)], axis=0)


def uniform(i: int, t: int) -> np.ndarray:
    """The numbers of draw 1, which follows the samples of draw 0."""
    normals = generator(SEED, "normal", i, t // BLOCK, 1).standard_normal((BLOCK, DIM))
    return ndtr(normals[t % BLOCK])


def coins(algorithm: ProxSkip | ProxSkipLSVRGDA) -> list[tuple[bool, ...]]:
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


def compare(
    algorithm: ProxSkip | ProxSkipLSVRGDA, expected: Iterator[Fields], clients: int, game: Games
) -> None:
    states = Drive(Case(algorithm, game), LocalTransport(), clients).states(STEPS)
    next(states)
    for state, fields in zip(states, expected, strict=True):
        for name, value in fields.items():
            torch.testing.assert_close(
                getattr(state, name), torch.from_numpy(value), rtol=0, atol=1e-12
            )


def every(
    one: Callable[[int, np.ndarray, int], np.ndarray],
) -> Callable[[list[np.ndarray], int], list[np.ndarray]]:
    return lambda x, t: [one(i, x[i], t) for i in range(N)]


ESTIMATES = {
    "full": (FullOperator(), every(lambda i, z, t: F_i(i, z))),
    "saga": (SAGA(), saga(F_ij, drawn, SAMPLES, X0, N)),
    "quantised": (
        Quantised(levels=3),
        every(lambda i, z, t: quantised(draw(i, z, t), 3, uniform(i, t))),
    ),
}


@pytest.mark.parametrize("name", ESTIMATES)
def test_proxskip_with_an_estimator_follows_its_pseudocode(name: str) -> None:
    estimator, estimates = ESTIMATES[name]
    algorithm = ProxSkip(lr=GAMMA, p=P, estimator=estimator)
    shown = coins(algorithm)
    expected = proxskip_with(estimates, X0, N, STEPS, GAMMA, P, lambda t: shown[t][0])
    compare(algorithm, expected, N, Games())


def test_proxskip_with_lsvrg_is_proxskip_lsvrgda_bit_by_bit() -> None:
    drives = [
        Drive(Case(algorithm, Games()), LocalTransport(), N).states(STEPS)
        for algorithm in (
            ProxSkip(lr=GAMMA, p=P, estimator=LSVRG(q=0.2)),
            ProxSkipLSVRGDA(lr=GAMMA, p=P, q=0.2),
        )
    ]
    for one, other in zip(*drives, strict=True):
        assert one.tensors().keys() == other.tensors().keys() == {"x", "h", "w", "F_w"}
        for name, value in one.tensors().items():
            assert torch.equal(value, other.tensors()[name]), name


def soft_threshold_and_clip(z: np.ndarray, step: float) -> np.ndarray:
    x, y = z[:2], z[2:]
    return np.concatenate([np.sign(x) * np.maximum(np.abs(x) - 0.3 * step, 0), y.clip(-0.2, 0.4)])


TERMS = (L1(0.3), Box(-0.2, 0.4))


def svrg() -> tuple[Estimator, Callable[[np.ndarray, int], np.ndarray]]:
    """Algorithm 3, whose reference point is x before the step."""
    shown = coins(ProxSkip(lr=GAMMA, p=P, estimator=LSVRG(q=0.3)))
    w = [X0]

    def g(x: np.ndarray, t: int) -> np.ndarray:
        estimate = draw(0, x, t) - draw(0, w[0], t) + F_i(0, w[0])
        if shown[t][1]:
            w[0] = x
        return estimate

    return LSVRG(q=0.3), g


@pytest.mark.parametrize("algorithm", [1, 3])
def test_one_client_with_terms_follows_algorithms_1_and_3(algorithm: int) -> None:
    estimator, g = svrg() if algorithm == 3 else (FullOperator(), lambda x, t: F_i(0, x))
    method = ProxSkip(lr=GAMMA, p=P, estimator=estimator)
    shown = coins(method)
    expected = proxskip_vip(g, soft_threshold_and_clip, X0, STEPS, GAMMA, P, lambda t: shown[t][0])
    compare(method, expected, 1, Games(terms=TERMS))


def test_the_first_steps_of_saga_by_hand() -> None:
    # One client, samples F_0(z) = z - 1 and F_1(z) = 3 z + 1, from z = 0: the table is (-1, 1).
    @dataclass(frozen=True)
    class TwoSamples:
        def oracle(self, site: Site) -> AffineOracle:
            games = [(np.array([[[1.0]], [[3.0]]]), np.array([[-1.0], [1.0]]))]
            return AffineOracle(site, games, 1, batch_size=1)

    drive = Drive(
        Case(ProxSkip(lr=0.1, p=1.0, estimator="saga"), TwoSamples()), LocalTransport(), 1
    )
    _, first, _ = drive.states(2)
    # g = F_j(0) - F_j(0) + mean of the table = 0: nothing moves, and the table stays.
    assert first.x.item() == 0
    assert first.table.flatten().tolist() == [-1, 1]
    # At z = 1: F_0 - table_0 = 0 + 1 = 1, F_1 - table_1 = 4 - 1 = 3; the mean of the table is 0.
    one = type(first)(first.x + 1, first.h, first.table)
    state, _ = drive.step(one, 2)
    j = int(generator(SEED, "samples", 0, 0, 0).integers(2, size=(BLOCK, 1))[2, 0])
    assert state.x.item() == pytest.approx(1 - 0.1 * (1, 3)[j])
    assert state.table.flatten().tolist() == ([0, 1], [-1, 4])[j]


@pytest.mark.parametrize("levels", [1, 4])
def test_quantisation_is_unbiased_with_the_variance_of_its_lemma(levels: int) -> None:
    v = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 30)))
    count = 2000
    # Stratified uniform numbers: every coordinate is rounded up in its exact share of the rows.
    u = ((torch.arange(count).double() + 0.5) / count)[:, None].expand(count, 30)
    q = quantise(v.expand(count, 30), levels, u)
    unit = float(v.norm()) / levels
    assert float((q.mean(0) - v[0]).abs().max()) <= unit / count
    variance = float((q - v).square().sum(1).mean())
    assert variance <= quantisation_variance(30, levels) * float(v.square().sum())
    assert bool(((q / unit).round() - q / unit).abs().max() < 1e-12)


def test_a_zero_vector_is_quantised_to_zero() -> None:
    assert torch.equal(quantise(torch.zeros(2, 3), 4, torch.rand(2, 3)), torch.zeros(2, 3))
