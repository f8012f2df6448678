"""What a sweeper is told of a run: the last value of `objective`, with Optuna if it is there."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fedsys.cli.main import main

GAME = (
    *("problem=quadratic_game", "algorithm=local_sgda", "clients=2", "problem.dim=2"),
    *("problem.samples=2", "rounds=4", "evaluate_every=2", "algorithm.lr_y=0.1"),
)


def fedsys(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedsys", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_an_unknown_objective_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedsys(monkeypatch, *GAME, "objective=auc") == 2
    printed = capsys.readouterr()
    assert "objective must be one of drift, operator_norm" in printed.err
    assert "round 2" not in printed.out


@pytest.mark.skipif(
    find_spec("optuna") is None, reason="Optuna is not installed: pip install fedsys[optuna]"
)
def test_optuna_finds_the_better_step_and_outlives_one_that_diverges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweeper = ("hydra/sweeper=optuna", "hydra.sweeper.direction=minimize")
    search = ("hydra.sweeper.n_trials=6", "hydra.sweeper.sampler.seed=1", "objective=drift")
    choice = "algorithm.lr_x=choice(0.001,0.2,1e38)"
    assert fedsys(monkeypatch, "--multirun", *sweeper, *search, *GAME, choice) == 1
    (results,) = tmp_path.glob("runs/sweep-*/optimization_results.yaml")
    best = OmegaConf.load(results)
    assert best.best_params["algorithm.lr_x"] == 0.001
