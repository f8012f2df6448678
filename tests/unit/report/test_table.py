"""Tables of runs: the best setting of each method, over its seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fedsys.report.table import main


def a_run(folder: Path, algorithm: str, lr: float, seed: int, **final: float) -> None:
    folder.mkdir(parents=True)
    config = {
        "algorithm": {"_target_": algorithm, "lr": lr},
        "seed": seed,
        "run": {"dir": str(folder)},
    }
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    summary = {
        "choices": {"algorithm": algorithm, "problem": "auc"},
        "final": {"round": 20, "bytes_up": 3e6, **final},
    }
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    aucs = {("a", 0.1): (0.9, 0.8), ("a", 0.2): (0.5, 0.99), ("b", 0.1): (0.86, 0.88)}
    for (algorithm, lr), values in aucs.items():
        for seed, auc in enumerate(values):
            folder = tmp_path / f"{algorithm}-{lr}-{seed}"
            a_run(folder, algorithm, lr, seed, test_auc=auc, train_loss=1 - auc)
    return tmp_path


def test_the_best_mean_over_seeds_wins_and_the_best_method_comes_first(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(sweep), "--metric", "test_auc", "train_loss"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| algorithm | test_auc | train_loss | rounds | MB up | seeds | settings tried"
        " | best setting |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| b | 0.87 ± 0.014 | 0.13 ± 0.014 | 20 | 3 | 2 | 1 |  |",
        "| a | 0.85 ± 0.071 | 0.15 ± 0.071 | 20 | 3 | 2 | 2 | lr=0.1 |",
    ]


def test_of_a_loss_the_smallest_is_the_best(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(sweep), "--metric", "train_loss"]) == 0
    assert "| a | 0.15 ± 0.071 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--metric", "auc"],
            "reports no metric named 'auc'; it reports round, bytes_up, test_auc",
        ),
        (
            ["--metric", "test_auc", "--by", "colour"],
            "unknown group 'colour'; choose from algorithm",
        ),
    ],
)
def test_a_table_that_cannot_be_made_is_refused_in_one_line(
    sweep: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([str(sweep), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_folder_without_runs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--metric", "test_auc"]) == 2
    assert "no finished run in" in capsys.readouterr().err


def test_a_seed_that_was_run_twice_is_one_seed(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(sweep / "again", "b", 0.1, 0, test_auc=0.86, train_loss=0.14)
    assert main([str(sweep), "--metric", "test_auc"]) == 0
    printed = capsys.readouterr()
    assert "| b | 0.87 ± 0.014 | 20 | 3 | 2 | 1 |  |" in printed.out
    assert "seed 0 was run more than once" in printed.err
    assert "its final values are equal to" in printed.err
