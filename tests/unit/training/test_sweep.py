"""Sweeps: stacked runs have the numbers of separate ones, and one that diverges ends alone."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import isclose
from typing import Any, ClassVar

import pytest
import torch

import fedsys
from fedsys.algorithms import (
    EG,
    FGDA,
    GDA,
    LDE,
    LESGD,
    LSGD,
    AdaFGDA,
    FedAvg,
    FedGDAGT,
    LocalSEG,
    LocalSGDA,
    ProxSkip,
    ProxSkipLSVRGDA,
    Scaffold,
    known_algorithms,
)
from fedsys.communication import SkipCoin
from fedsys.core.algorithm import Algorithm
from fedsys.core.errors import InputError, NonFiniteError
from fedsys.core.oracles import Oracle, Problem
from fedsys.problems import (
    BilinearGame,
    CompositeSaddle,
    HeterogeneousToy,
    LogCoshSaddle,
    MinimisationProblem,
    PolicemanBurglar,
    QuadraticGame,
    RobustLeastSquares,
    VariationalProblem,
)
from fedsys.training import stack

CLOCKS = ("seconds", "seconds_waited")
GAME = QuadraticGame(dim=2, samples=5, batch_size=2, noise=0.1)
TOY = HeterogeneousToy(dim=3, heterogeneity="high")
LOSS = MinimisationProblem(
    lambda x, client, rng: (x - client).square().sum() + x @ torch.from_numpy(rng.normal(size=3)),
    torch.zeros(3),
)
SUM = VariationalProblem(lambda z, client, i: z - client + i, torch.ones(4), samples=3)
RATES = {"lr": [0.01, 0.05, 0.1]}


def assert_same(found: fedsys.SweepResult, problem: Problem[Oracle], **settings: Any) -> None:
    """Compare every run of a sweep with a run alone: records, state, variables and errors."""
    for run in found.runs:
        given = {"seed": run.seed, "dtype": "float64", **settings}
        alone = fedsys.run(problem, run.algorithm, **copy.deepcopy(given))
        assert run.result is not None
        assert len(run.records) == len(alone.records)
        for ours, theirs in zip(run.records, alone.records, strict=True):
            # The run alone is given the numbers that theory chose, so it shows no bound.
            assert ours.keys() - {"lyapunov", "lyapunov_bound"} == theirs.keys()
            for name in theirs.keys() - set(CLOCKS):
                near = isclose(ours[name], theirs[name], rel_tol=1e-12, abs_tol=1e-12)
                assert near, (run.name, run.numbers, name)
        for name, rows in alone.state.tensors().items():
            own = run.result.state.tensors()[name]
            torch.testing.assert_close(own, rows, rtol=1e-12, atol=1e-12)
        for name, value in alone.variables.items():
            own = run.result.variables[name]
            torch.testing.assert_close(own, value, rtol=1e-12, atol=1e-12)


CASES: list[tuple[Problem[Any], Algorithm[Any, Any], dict[str, Any]]] = [
    (GAME, LSGD(local_steps=3), RATES),
    (GAME, LESGD(local_steps=3), RATES),
    (GAME, LocalSEG(local_steps=3), RATES),
    (GAME, ProxSkip(), {**RATES, "p": [0.3, 0.5]}),
    (GAME, ProxSkipLSVRGDA(p=0.3, q=0.4), RATES),
    (GAME, FedGDAGT(local_steps=3), RATES),
    (GAME, GDA(), RATES),
    (GAME, EG(), RATES),
    (GAME, LocalSGDA(local_steps=3), {"lr_x": [0.01, 0.1], "lr_y": [0.02, 0.2]}),
    (GAME, FGDA(local_steps=3), {"lr_x": [0.01, 0.1], "beta": [0.3, 0.8]}),
    (TOY, ProxSkip(), RATES),  # p follows from lr, so that coins differ
    (TOY, LSGD(local_steps=4), RATES),
    (RobustLeastSquares(rows=12, features=3, batch_size=2), LSGD(local_steps=3), RATES),
    (LogCoshSaddle(noise=0.1), LESGD(local_steps=3), RATES),
    (CompositeSaddle(dim=3, support=2), LDE(local_steps=3), RATES),
    (CompositeSaddle(dim=3, support=2), ProxSkip(p=0.4), RATES),
    (PolicemanBurglar(), LSGD(local_steps=3), RATES),
    (LOSS, Scaffold(local_steps=3), RATES),
    (LOSS, FedAvg(local_steps=3), RATES),
    (SUM, LSGD(local_steps=3), RATES),
    (SUM, ProxSkip(p=0.4), RATES),
]


@pytest.mark.parametrize(("problem", "algorithm", "grid"), CASES)
def test_stacked_runs_have_the_numbers_of_separate_runs(
    problem: Problem[Any],
    algorithm: Algorithm[Any, Any],
    grid: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []
    arrange = stack.Stack.run

    def noted(self: stack.Stack) -> None:
        sizes.append(len(self._lanes))
        arrange(self)

    monkeypatch.setattr(stack.Stack, "run", noted)
    found = fedsys.sweep(problem, algorithm, seeds=[0, 3], rounds=4, clients=3, **grid)
    assert sizes == [len(found.runs)]  # all of them in one stack
    assert_same(found, problem, rounds=4, clients=3)


def test_every_algorithm_that_declares_stackable_is_compared() -> None:
    declared = {one for one in known_algorithms() if one.stackable is not None}
    assert declared == {type(algorithm) for _, algorithm, _ in CASES}


def test_a_communicator_with_options_is_copied_for_every_run() -> None:
    communicator = SkipCoin(participation=0.5)
    settings: Any = {"steps": 9, "clients": 4}
    given: Any = {**settings, "communicator": communicator}
    found = fedsys.sweep(GAME, LSGD(local_steps=3), seeds=range(2), **RATES, **given)
    assert_same(found, GAME, communicator=SkipCoin(participation=0.5), **settings)
    assert communicator.traffic.rounds == 0


def test_a_run_that_diverges_ends_alone() -> None:
    grid: Any = {"lr": [0.01, 1e30]}
    found = fedsys.sweep(GAME, LSGD(local_steps=3), seeds=[0, 1], rounds=30, clients=3, **grid)
    small, large = found.settings
    assert small.failed == 0
    assert large.failed == 2
    with pytest.raises(NonFiniteError) as alone:
        fedsys.run(GAME, LSGD(local_steps=3, lr=1e30), rounds=30, clients=3, dtype="float64")
    assert str(large.runs[0].error) == str(alone.value)
    assert large.runs[0].result is None
    assert large.mean("relative_error") is None
    assert found.best() == small


def test_a_run_that_is_refused_is_left_out_with_a_warning() -> None:
    # A bilinear game is not co-coercive, so that Theorem 6 has no step size for it.
    with pytest.warns(RuntimeWarning, match="a run is left out: LSGD: lr=theory"):
        found = fedsys.sweep(
            BilinearGame(dim=2), [LSGD(), LESGD()], lr=["theory", 0.1], rounds=2, clients=2
        )
    assert [run.error is None for run in found.runs] == [False, True, True, True]
    assert "LSGD (lr=theory)" in repr(found)
    with pytest.raises(InputError, match="LSGD: lr=theory"):
        fedsys.sweep(BilinearGame(dim=2), LSGD(), rounds=2, clients=2)


def test_runs_that_cannot_be_stacked_follow_one_another() -> None:
    algorithms = [AdaFGDA(local_steps=2), FGDA(local_steps=2)]
    found = fedsys.sweep(GAME, algorithms, lr_x=[0.01, 0.02], seeds=[0, 1], rounds=2, clients=2)
    assert [run.name for run in found.runs] == ["AdaFGDA"] * 4 + ["FGDA"] * 4
    assert_same(found, GAME, rounds=2, clients=2)


@dataclass(frozen=True)
class Coupled(LSGD):
    """A user's variant of LSGD, whose rows could depend on one another."""

    kind: ClassVar[str] = "variational"


def test_a_subclass_of_a_user_is_not_stacked_unless_it_says_so() -> None:
    assert stack.stackable_names(LSGD) == ("lr",)
    assert stack.stackable_names(Coupled) is None


def test_best_compares_the_means_over_the_seeds_and_repr_shows_all_settings() -> None:
    algorithms: Any = {"plain": LSGD(local_steps=2), "extra": LocalSEG(local_steps=2)}
    found = fedsys.sweep(TOY, algorithms, lr=[1e-4, 0.1], seeds=range(3), rounds=5, clients=3)
    assert found.best().numbers == {"lr": 0.1}
    assert found.best(name="plain").name == "plain"
    means = {setting.label: setting.mean("relative_error") for setting in found.settings}
    best = found.best("relative_error")
    assert means[best.label] == min(value for value in means.values() if value is not None)
    lines = repr(found).split("\n")
    assert lines[0].split() == ["setting", "seeds", "relative_error", "failed"]
    assert [line.split("  ")[0] for line in lines[1:]] == list(means)
    with pytest.raises(InputError, match="no setting has a finite accuracy for every seed"):
        found.best("accuracy")


def test_frame_has_a_row_for_every_record() -> None:
    found = fedsys.sweep(TOY, LSGD(local_steps=2), lr=[0.1, 0.2], seeds=[5], rounds=2, clients=2)
    frame = found.frame()
    assert len(frame) == 2 * 3
    assert frame["seed"].tolist() == [5] * 6
    assert frame["lr"].tolist() == [0.1] * 3 + [0.2] * 3


@pytest.mark.parametrize(
    ("algorithms", "settings", "message"),
    [
        (LSGD(), {"momentum": [0.1]}, "LSGD has no hyperparameter momentum"),
        ([], {}, "no runs"),
        (LSGD(), {"lr": []}, "no runs"),
        ([LSGD], {"lr": [0.1]}, "is not an algorithm"),
        (LSGD(), {"lr": [-1.0]}, "lr must be positive"),
        (LSGD(), {"seeds": [0, 1, 2, 0]}, "sweep: seeds lists 0 twice; list every value once"),
        (LSGD(), {"lr": [0.1, 0.2, 0.1]}, "sweep: lr lists 0.1 twice"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(
    algorithms: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fedsys.sweep(GAME, algorithms, rounds=2, clients=2, **settings)
