"""Bounds of the gap on random affine games: every one that is shown holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_games import RandomGame

import fedsys
from fedsys.algorithms import LDE, LESGD, LIPPAX, LSGD
from fedsys.core.algorithm import Algorithm
from fedsys.training import summary

METHODS = {"lesgd": LESGD, "lsgd": LSGD, "lippax": LIPPAX, "lde": LDE}


def bound_of(problem: RandomGame, algorithm: Algorithm[Any, Any], **options: Any) -> Any:
    settings = {"clients": 3, "rounds": 6, "dtype": "float64", "evaluate_every": 10**6, **options}
    found = summary.theory(fedsys.run(problem, algorithm, **settings))
    assert found is not None
    return found.get("bound")


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    skew=st.floats(0, 3),
    name=st.sampled_from(list(METHODS)),
    local_steps=st.integers(1, 6),
)
def test_a_bound_of_the_gap_holds_on_equal_clients_without_noise(
    seed: int, skew: float, name: str, local_steps: int
) -> None:
    """Without noise the run is deterministic, and a bound in expectation is one of the run."""
    game = RandomGame(seed, skew, alike=True)
    bound = bound_of(game, METHODS[name](local_steps=local_steps))
    # LIPPAX and LDE have bounds for operators with bounded values only, and an affine one has none.
    assert (bound is not None) == (name in ("lesgd", "lsgd"))
    if bound is not None:
        assert bound["holds"], bound


@pytest.mark.parametrize("name", ["lesgd", "lsgd"])
@pytest.mark.parametrize(
    "game",
    [RandomGame(0), RandomGame(0, alike=True, batch_size=1)],
    ids=["different clients", "single samples"],
)
def test_a_game_that_the_theorem_does_not_cover_has_no_bound(name: str, game: RandomGame) -> None:
    assert bound_of(game, METHODS[name](local_steps=3)) is None


@pytest.mark.parametrize("name", ["lesgd", "lsgd"])
def test_less_than_a_round_has_no_bound(name: str) -> None:
    game = RandomGame(0, alike=True)
    assert bound_of(game, METHODS[name](local_steps=8), rounds=None, steps=5) is None
