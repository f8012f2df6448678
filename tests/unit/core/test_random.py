"""A random number depends on what it is for: never on the rank, nor on what was drawn before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import Clouds

from fedsys.clients.batches import Batches
from fedsys.core.oracles import Problem, Variational
from fedsys.core.placement import Placement
from fedsys.core.random import BLOCK, BlockedDraws, generator
from fedsys.core.site import Site
from fedsys.problems import Classification, DeepAUC, QuadraticGame

SEED = 11
SIZES = [5, 8, 3, 7]
MOMENT = st.tuples(st.integers(0, 3 * BLOCK), st.integers(0, 2))
"""(step, k)."""


def numbers(*key: int) -> list[float]:
    seed, client, step, k = key
    return generator(seed, "test", client, step, k).random(4).tolist()


@given(
    st.tuples(*[st.integers(0, 2**31)] * 4),
    st.tuples(*[st.integers(0, 2**31)] * 4),
)
def test_a_stream_is_a_function_of_seed_client_step_and_k_and_of_each_of_them(
    key: tuple[int, ...], other: tuple[int, ...]
) -> None:
    assert numbers(*key) == numbers(*key)
    if key != other:
        assert not set(numbers(*key)) & set(numbers(*other))


@pytest.mark.parametrize("position", range(4))
def test_neighbouring_streams_share_no_number(position: int) -> None:
    key = [3, 4, 5, 6]
    long = generator(key[0], "test", *key[1:]).random(10_000)
    key[position] += 1
    neighbour = generator(key[0], "test", *key[1:]).random(10_000)
    assert len(np.intersect1d(long, neighbour)) == 0


def test_another_purpose_is_another_stream() -> None:
    assert generator(0, "coins").random() != generator(0, "batches").random()


def test_the_numbers_of_a_stream_are_the_same_for_ever() -> None:
    # Written down once: a change would make every old result irreproducible.
    stream = generator(seed=1, purpose="test", client=2, step=3, k=4)
    assert stream.integers(1000, size=4).tolist() == [597, 423, 147, 515]
    assert stream.standard_normal() == pytest.approx(-2.335035177485764, abs=1e-15)


# Small draws, made for blocks of steps.


def block_row(client: int, step: int, k: int) -> tuple[list[int], list[float]]:
    """The draws of one client that is alone, made in this moment only."""
    alone = BlockedDraws(SEED, "test", [client])
    return alone.integers(step, k, 100, 3)[0].tolist(), alone.normal(step, k + 9, 2)[0].tolist()


@settings(deadline=None)
@given(st.sets(st.integers(0, 5), min_size=1), st.lists(MOMENT, min_size=1, max_size=8))
def test_blocked_draws_depend_on_client_step_and_k_in_any_hosting_and_order(
    clients: set[int], moments: list[tuple[int, int]]
) -> None:
    hosted = sorted(clients)
    draws = BlockedDraws(SEED, "test", hosted)
    for step, k in moments:
        integers, normal = draws.integers(step, k, 100, 3), draws.normal(step, k + 9, 2)
        assert integers.shape == (len(hosted), 3)
        assert normal.shape == (len(hosted), 2)
        for row, client in enumerate(hosted):
            assert (integers[row].tolist(), normal[row].tolist()) == block_row(client, step, k)


def test_blocked_draws_differ_between_clients_steps_and_k() -> None:
    draws = BlockedDraws(SEED, "test", range(4))
    seen = {
        value
        for step in (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK)
        for k in (0, 1)
        for value in draws.normal(step, k, 3).ravel().tolist()
    }
    assert len(seen) == 5 * 2 * 4 * 3


def test_uniform_integers_reach_all_of_their_range() -> None:
    draws = BlockedDraws(SEED, "test", [0])
    values = np.concatenate([draws.integers(step, 0, 7, 5)[0] for step in range(200)])
    counts = np.bincount(values, minlength=7)
    assert len(counts) == 7
    assert np.all(abs(counts - 1000 / 7) < 5 * np.sqrt(1000 * 6 / 49))


# Batches.


def batches(clients: list[int], batch_size: int | None, seed: int = SEED) -> Batches:
    """Client c owns the samples 100 c, 100 c + 1, ...; a sample's label is its number."""
    sizes = [SIZES[client] for client in clients]
    samples = [100 * c + torch.arange(n) for c, n in zip(clients, sizes, strict=True)]
    labels = torch.cat(samples)
    return Batches(labels[:, None].double(), labels, sizes, clients, batch_size, seed)


def batch_rows(source: Batches, step: int, k: int = 0) -> list[list[int]]:
    batch = source.at(step, k)
    for inputs, labels in zip(batch.inputs, batch.labels, strict=True):
        assert torch.equal(inputs[:, 0], labels.double())
    return [labels.tolist() for labels in batch.labels]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 8, 20])
def test_an_epoch_visits_every_sample_of_a_client_once(batch_size: int) -> None:
    source = batches([0, 1, 2, 3], batch_size)
    for client, size in enumerate(SIZES):
        steps = range(3 * size)
        drawn = [sample for step in steps for sample in batch_rows(source, step)[client]]
        assert len(drawn) == 3 * size * batch_size
        own = {100 * client + i for i in range(size)}
        for epoch in range(3 * batch_size):
            assert set(drawn[epoch * size : (epoch + 1) * size]) == own


def test_two_epochs_two_draws_and_two_seeds_have_orders_of_their_own() -> None:
    source = batches([1], batch_size=8)
    epochs = [batch_rows(source, step)[0] for step in range(4)]
    epochs += [batch_rows(source, 0, k=1)[0], batch_rows(batches([1], 8, seed=SEED + 1), 0)[0]]
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_a_batch_larger_than_the_data_continues_into_the_next_epochs() -> None:
    (row,) = batch_rows(batches([2], batch_size=7), step=0)
    counts = np.bincount(np.array(row) - 200, minlength=3)
    assert len(row) == 7
    assert sorted(counts.tolist()) == [2, 2, 3]


def test_no_batch_size_means_all_samples_in_every_step() -> None:
    source = batches([0, 3], batch_size=None)
    for step in (0, 5):
        assert batch_rows(source, step) == [list(range(5)), [300 + i for i in range(7)]]


@settings(deadline=None)
@given(
    st.sets(st.integers(0, 3), min_size=1),
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), min_size=1, max_size=8),
)
def test_batches_depend_on_client_step_and_k_in_any_hosting_and_order(
    clients: set[int], batch_size: int, moments: list[tuple[int, int]]
) -> None:
    hosted = sorted(clients)
    source = batches(hosted, batch_size)
    for step, k in moments:
        rows = batch_rows(source, step, k)
        for row, client in zip(rows, hosted, strict=True):
            assert [row] == batch_rows(batches([client], batch_size), step, k)


# Oracles: the draws of whole problems.


PROBLEMS = {
    "game": QuadraticGame(dim=2, samples=9, batch_size=3),
    "classes": Classification(Clouds(), batch_size=4),
    "auc": DeepAUC(Clouds(), batch_size=4),
}


def drawn(problem: Problem[Variational], placement: Placement, step: int, k: int) -> torch.Tensor:
    """What each hosted client computes at the start with the k-th draw of a step."""
    oracle = problem.oracle(Site(placement, SEED, torch.float64)).at(step)
    for _ in range(k + 1):
        xi = oracle.draw()
    return oracle.operator(oracle.z0, xi)


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_the_draws_of_a_problem_are_the_same_at_every_placement(name: str) -> None:
    problem = PROBLEMS[name]
    alone = drawn(problem, Placement(6), step=70, k=1)
    for ranks in (2, 4, 6):
        parts = [drawn(problem, Placement(6, rank, ranks), 70, k=1) for rank in range(ranks)]
        torch.testing.assert_close(torch.cat(parts), alone, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_each_draw_of_a_step_is_new_and_a_step_can_be_repeated(name: str) -> None:
    oracle = PROBLEMS[name].oracle(Site(Placement(4), SEED, torch.float64))
    first, again, next_step = oracle.at(5), oracle.at(5), oracle.at(6)
    draws = [oracle.operator(oracle.z0, first.draw()) for _ in range(3)]
    for draw in draws:
        assert torch.equal(oracle.operator(oracle.z0, again.draw()), draw)
    draws.append(oracle.operator(oracle.z0, next_step.draw()))
    distinct = {tuple(row.tolist()) for draw in draws for row in draw}
    assert len(distinct) == 4 * 4
