"""An algorithm, a problem, a data set, a metric and a communicator need no change of the package.

Each is a class or a function in a module on Python's path and a YAML file in a folder that is given
by `--config-dir`. The tests write both to a temporary folder and run them through the command line,
in one process and on two ranks, and through `fedsys.run`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from support.processes import Done, command, run_python

import fedsys

MODULE = '''
"""Extensions of a user."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import fedsys
from fedsys.communication import AllReduce
from fedsys.core.oracles import Minimisation
from fedsys.core.sync import Sync
from fedsys.data import Dataset


@dataclass(frozen=True)
class HeavyBallState(fedsys.State):
    """The point x and the velocity v; a row per hosted client."""

    x: Tensor
    v: Tensor


@dataclass(frozen=True)
class LocalHeavyBall(fedsys.PeriodicAlgorithm[Minimisation, HeavyBallState]):
    """v <- momentum v - lr grad f_m(x), x <- x + v; averages x and v after `local_steps` steps."""

    lr: float = 0.1
    momentum: float = 0.5

    kind: ClassVar[str] = "minimisation"

    def init(self, oracle: Minimisation, sync: Sync) -> HeavyBallState:
        return HeavyBallState(oracle.x0, torch.zeros_like(oracle.x0))

    def step(self, state: HeavyBallState, oracle: Minimisation, sync: Sync) -> HeavyBallState:
        v = self.momentum * state.v - self.lr * oracle.grad(state.x, oracle.draw())
        return HeavyBallState(*sync(state.x + v, v))

    def solution(self, state: HeavyBallState) -> Tensor:
        return state.x


def client_mean(dim: int) -> fedsys.MinimisationProblem:
    """min over x of mean_m |x - m|^2 / 2: the minimiser is the mean client number."""
    return fedsys.MinimisationProblem(
        lambda x, client, rng: (x - client).square().sum() / 2,
        x=torch.zeros(dim),
        metrics=lambda x: {"largest_coordinate": float(x.max())},
    )


def mistaken(mistake: str) -> fedsys.VariationalProblem:
    """A problem whose function has a mistake, on the last client only."""

    def operator(z, client):
        if client < 2:
            return z
        return {"shape": z[:1], "not finite": z / 0}[client if mistake == "key" else mistake]

    return fedsys.VariationalProblem(operator, z=torch.zeros(2), vectorize="loop")


@dataclass(frozen=True)
class TwoClouds:
    """Two clouds of points in the plane, a class each."""

    samples: int = 64
    distance: float = 4.0
    seed: int = 0

    def load(self) -> Dataset:
        rng = torch.Generator().manual_seed(self.seed)
        parts = []
        for _ in range(2):
            labels = torch.arange(self.samples) % 2
            noise = torch.randn(self.samples, 2, generator=rng)
            parts += [noise + self.distance * labels[:, None], labels]
        return Dataset(*parts, classes=2, name="two_clouds")


class RoundedAllReduce(AllReduce):
    """Rounds what clients send in a round to multiples of `grid`."""

    name = "rounded"

    def __init__(self, grid: float = 0.25, **options: object) -> None:
        super().__init__(**options)
        self.grid = grid

    def mean(self, fields, traffic, step):
        if step >= 0:  # not an evaluation
            fields = tuple((field / self.grid).round() * self.grid for field in fields)
        return super().mean(fields, traffic, step)
'''

FILES = {
    "algorithm/heavy_ball.yaml": """
        # @package _global_
        defaults:
          - override /problem: client_mean
        algorithm:
          _target_: user_extensions.LocalHeavyBall
          lr: 0.1
          momentum: 0.5
          local_steps: 2
        """,
    "problem/client_mean.yaml": """
        _target_: user_extensions.client_mean
        dim: 3
        """,
    "problem/mistaken.yaml": """
        _target_: user_extensions.mistaken
        mistake: shape
        """,
    "dataset/two_clouds.yaml": """
        _target_: user_extensions.TwoClouds
        samples: 64
        distance: 4.0
        seed: ${seed}
        """,
    "communicator/rounded.yaml": """
        defaults:
          - all_reduce
        _target_: user_extensions.RoundedAllReduce
        grid: 0.25
        """,
    "experiment/mine.yaml": """
        # @package _global_
        defaults:
          - override /algorithm: heavy_ball
          - override /communicator: rounded
        clients: 4
        rounds: 30
        dtype: float64
        """,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module and, in conf/, the files of the user."""
    (tmp_path / "user_extensions.py").write_text(MODULE)
    for name, text in FILES.items():
        path = tmp_path / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        path.write_text("\n".join(line[8:] for line in lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.delitem(sys.modules, "user_extensions", raising=False)
    return tmp_path


@pytest.fixture
def extensions(folder: Path) -> ModuleType:
    """The module of the user."""
    import user_extensions

    return user_extensions


@pytest.fixture
def run_here(folder: Path, fedsys: Callable[..., Done]) -> Callable[..., dict[str, float]]:
    """`fedsys --config-dir=conf ...` in this process; the last record."""

    def run(*arguments: str) -> dict[str, float]:
        done = fedsys("--config-dir=conf", *arguments, "run.dir=run")
        assert done.returncode == 0, done.stderr
        return final_record(folder / "run")

    return run


def final_record(directory: Path) -> dict[str, float]:
    """The last record of a run directory."""
    summary = json.loads((directory / "summary.json").read_text())
    final: dict[str, float] = summary["final"]
    return final


def test_a_new_algorithm_solves_a_new_problem_and_reports_a_new_metric(
    run_here: Callable[..., dict[str, float]],
) -> None:
    final = run_here(
        "algorithm=heavy_ball", "clients=4", "rounds=60", "objective=largest_coordinate"
    )
    assert final["largest_coordinate"] == pytest.approx(1.5, abs=1e-5)
    assert final["train_loss"] == pytest.approx(3 * 1.25 / 2, abs=1e-5)


def test_options_of_the_new_classes_are_overrides(
    run_here: Callable[..., dict[str, float]],
) -> None:
    final = run_here("algorithm=heavy_ball", "algorithm.lr=0", "problem.dim=5", "clients=2")
    assert final["largest_coordinate"] == 0
    assert final["train_loss"] == pytest.approx(5 / 4)


def test_a_known_problem_trains_on_a_new_data_set(
    run_here: Callable[..., dict[str, float]],
) -> None:
    final = run_here(
        *("algorithm=fedavg", "dataset=two_clouds", "model=logistic", "clients=2"),
        *("rounds=10", "partition=dirichlet"),
    )
    assert final["test_accuracy"] > 0.95


def test_a_new_algorithm_trains_a_network(run_here: Callable[..., dict[str, float]]) -> None:
    final = run_here(
        *("algorithm=heavy_ball", "problem=classification", "dataset=two_clouds"),
        *("model=logistic", "clients=2", "rounds=30"),
    )
    assert final["test_accuracy"] > 0.95


def test_a_new_communicator_changes_what_clients_receive(
    run_here: Callable[..., dict[str, float]],
) -> None:
    final = run_here(
        *("algorithm=heavy_ball", "communicator=rounded", "communicator.grid=0.5", "clients=4"),
        *("dtype=float64", "rounds=1"),
    )
    # Client m takes two steps: v = 0.1 m and x = 0.1 m, then v = 0.14 m and x = 0.24 m. On a grid
    # of 0.5 the four x are 0, 0, 0.5 and 0.5.
    assert final["largest_coordinate"] == 0.25


def test_an_experiment_of_the_user_runs_on_two_ranks_as_in_one_process(
    folder: Path, run_here: Callable[..., dict[str, float]]
) -> None:
    alone = run_here("experiment=mine")
    done = command(folder, 2, "--config-dir=conf", "experiment=mine", "run.dir=two")
    assert done.returncode == 0, done.stderr
    together = final_record(folder / "two")
    for name in ("largest_coordinate", "train_loss", "bytes_up"):
        assert together[name] == pytest.approx(alone[name], rel=1e-12)


def test_the_command_finds_the_extensions_in_the_current_folder(folder: Path) -> None:
    done = run_python(folder, "-m", "fedsys", "--config-dir=conf", "experiment=mine", "run.dir=run")
    assert done.returncode == 0, done.stderr
    assert final_record(folder / "run")["round"] == 30


def test_a_search_path_serves_as_well_as_a_config_dir(
    folder: Path, fedsys: Callable[..., Done]
) -> None:
    done = fedsys(
        f"hydra.searchpath=[file://{folder / 'conf'}]", "algorithm=heavy_ball", "rounds=2"
    )
    assert done.returncode == 0, done.stderr


def test_the_same_classes_run_from_python(
    extensions: ModuleType, run_here: Callable[..., dict[str, float]]
) -> None:
    result = fedsys.run(
        extensions.client_mean(dim=3),
        extensions.LocalHeavyBall(lr=0.1, momentum=0.5, local_steps=2),
        communicator=extensions.RoundedAllReduce(grid=0.25),
        rounds=30,
        clients=4,
        dtype="float64",
    )
    final = run_here("experiment=mine")
    for name in ("largest_coordinate", "train_loss", "bytes_up"):
        assert result.records[-1][name] == final[name]


def test_an_error_names_the_options_of_the_user_too(
    folder: Path, fedsys: Callable[..., Done]
) -> None:
    done = fedsys("--config-dir=conf", "algorithm=heavy_bal")
    assert done.returncode == 2
    assert "heavy_ball" in done.stderr
    done = fedsys("--config-dir=conf", "dataset=3")
    assert done.returncode == 2
    assert "two_clouds" in done.stderr


def test_a_problem_that_does_not_fit_names_those_of_the_user(
    folder: Path, fedsys: Callable[..., Done]
) -> None:
    done = fedsys("--config-dir=conf", "algorithm=heavy_ball", "problem=quadratic_bilevel")
    assert done.returncode == 2
    assert "heavy_ball needs a minimisation problem" in done.stderr


@pytest.mark.parametrize(
    ("ranks", "mistake", "line"),
    [
        (
            1,
            "shape",
            "operator(z, ...) returned a tensor of shape [1]; expected a tensor of shape [2]",
        ),
        (
            2,
            "key",
            "operator(z, ...) raised KeyError for client 2: 2 (FEDSYS_DEBUG=1 shows the trace",
        ),
        (2, "not finite", "operator(z, ...) returned nan or inf at the starting point of client 2"),
    ],
)
def test_a_mistake_in_a_function_is_one_line_of_one_rank(
    folder: Path, ranks: int, mistake: str, line: str
) -> None:
    options = ("--config-dir=conf", "problem=mistaken", f"problem.mistake={mistake}")
    done = command(
        folder, ranks, *options, "algorithm=lsgd", "algorithm.lr=0.1", "clients=3", "run.dir=run"
    )
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert f"VariationalProblem: {line}" in said
    assert not (folder / "run").exists()


def test_the_traceback_of_a_function_is_shown_on_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSYS_DEBUG", "1")
    options = ("--config-dir=conf", "problem=mistaken", "problem.mistake=key", "algorithm=lsgd")
    done = run_python(folder, "-m", "fedsys", *options, "algorithm.lr=0.1", "clients=3")
    assert done.returncode == 2
    assert "in operator" in done.stderr
    assert done.stderr.count("KeyError: 2") == 1
