"""When a run ends early and which record it keeps: on any number of ranks, and after a restart."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from math import nan, prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.processes import Ranks, connected
from torch import Tensor, nn

import fedsys
from fedsys import EarlyStopping
from fedsys.algorithms import LESGD, LSGD, LocalSGDA
from fedsys.cli.main import main
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.errors import InputError, InterruptedRunError
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.data import Digits
from fedsys.distributed.world import World
from fedsys.models import MLP
from fedsys.problems import DeepAUC, QuadraticGame
from fedsys.training.api import default_communicator, make_site
from fedsys.training.best_record import BestRecord, Standing
from fedsys.training.checkpoint import Checkpoints
from fedsys.training.plan import Plan
from fedsys.training.result import Result
from fedsys.training.runner import Runner

GAME = QuadraticGame(dim=2, samples=4, batch_size=1)
NOISY = LSGD(lr=0.05, local_steps=2)


def standings(values: list[float], metric: str, min_delta: float = 0.0) -> list[Standing]:
    found = [Standing(metric, values[0], values[0], 0, 0, 0, 0)]
    for step, value in enumerate(values[1:], start=1):
        found.append(found[-1].after({"step": 10 * step, "round": step}, value, min_delta))
    return found


def test_records_without_improvement_are_counted_from_the_last_improvement() -> None:
    found = standings([3.0, 2.0, 2.0, 2.5, 1.0], "train_loss")
    assert [one.waited for one in found] == [0, 0, 1, 2, 0]
    assert [one.step for one in found] == [0, 10, 10, 10, 40]
    assert [one.round for one in found] == [0, 1, 1, 1, 4]


def test_the_direction_is_that_of_the_metric() -> None:
    found = standings([0.5, 0.6, 0.55, 0.7], "test_auc")
    assert [one.value for one in found] == [0.5, 0.6, 0.6, 0.7]
    assert [one.waited for one in found] == [0, 0, 1, 0]


def test_a_small_improvement_is_kept_but_does_not_reset_the_count() -> None:
    # 2.9 and 2.8 are better than 3 by 0.2 at most; 2.4 is better than 3 by 0.6.
    found = standings([3.0, 2.9, 2.8, 2.4], "train_loss", min_delta=0.5)
    assert [one.waited for one in found] == [0, 1, 2, 0]
    assert [one.value for one in found] == [3.0, 2.9, 2.8, 2.4]


def test_nan_never_improves_and_is_improved_by_any_number() -> None:
    found = standings([nan, nan, 2.0, nan], "train_loss")
    assert [one.waited for one in found] == [0, 1, 0, 1]
    assert found[-1].value == 2.0
    assert found[-1].step == 20


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"patience": 0}, "early_stopping: patience must be at least 1 record, or null"),
        ({"min_delta": -1.0}, "early_stopping: min_delta must be not negative, got -1.0"),
        ({"patience": 1.5}, "early_stopping: patience must be"),
    ],
)
def test_options_out_of_range_are_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        EarlyStopping(**given)


def test_an_unknown_choice_of_what_is_kept_is_refused() -> None:
    with pytest.raises(InputError, match="keep must be last or best, got 'first'"):
        fedsys.run(GAME, NOISY, rounds=1, keep="first")


def test_an_unknown_metric_is_refused_at_the_first_record() -> None:
    options = EarlyStopping(metric="test_auc", patience=2)
    with pytest.raises(InputError, match=r"metric must be one of .*operator_norm.*; got test_auc"):
        fedsys.run(GAME, NOISY, rounds=3, early_stopping=options)


def expected_stop(values: list[float], patience: int) -> int:
    """Return the place of the record at which a quantity to minimise stops the run."""
    best, waited = values[0], 0
    for place, value in enumerate(values[1:], start=1):
        best, waited = (value, 0) if value < best else (best, waited + 1)
        if waited == patience:
            return place
    return len(values) - 1


def game(**settings: Any) -> Result:
    given = {"rounds": 60, "clients": 4, "dtype": "float64", "evaluate_every": 2, **settings}
    return fedsys.run(GAME, NOISY, **given)


def test_a_run_stops_with_the_record_that_exhausts_its_patience() -> None:
    whole = game()
    values = [record["operator_norm"] for record in whole.records]
    place = expected_stop(values, 3)
    assert 3 < place < len(values) - 1
    stopped = game(early_stopping=EarlyStopping(metric="operator_norm", patience=3))
    assert [one["operator_norm"] for one in stopped.records] == values[: place + 1]
    best = min(values[: place + 1])
    assert stopped.stopped == (
        "early stopping: operator_norm has not improved for 3 records; its best value is "
        f"{best:.6g}, in round {2 * values.index(best)}"
    )
    assert (whole.stopped, whole.records_without_improvement) == ("", None)
    assert whole.kept == {"step": 120, "round": 60}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_best_record_gives_the_variables_of_a_run_that_ends_there() -> None:
    best = game(keep="best", early_stopping=EarlyStopping(metric="operator_norm"))
    values = {record["round"]: record["operator_norm"] for record in best.records}
    round_of_best = min(values, key=values.__getitem__)
    assert 0 < round_of_best < 60
    assert best.kept == {
        "step": 2 * round_of_best,
        "round": round_of_best,
        "operator_norm": values[round_of_best],
    }
    assert same(best.variables, game(rounds=int(round_of_best)).variables)
    assert same(best.state.tensors(), game().state.tensors())


def test_the_best_record_of_an_average_gives_the_average() -> None:
    algorithm = LESGD(lr=0.05, local_steps=2)
    options = EarlyStopping(metric="average_operator_norm")
    settings: dict[str, Any] = {"clients": 2, "dtype": "float64", "early_stopping": options}
    best = fedsys.run(GAME, algorithm, rounds=20, keep="best", **settings)
    values = [record["average_operator_norm"] for record in best.records]
    assert best.kept["average_operator_norm"] == min(values)
    point = torch.cat([value.flatten() for value in best.variables.values()])
    site = Site(Placement(2), dtype=torch.float64, kind="variational")
    communicator = AllReduce()
    communicator.open(LocalTransport(), site.placement, Every())
    rows = point.expand(2, -1)
    measured = GAME.oracle(site).evaluate(rows, communicator.unmetered())["operator_norm"]
    assert measured == pytest.approx(min(values), rel=1e-9)


# Ranks and restarts. The metric exists on the first rank only.


@dataclass(frozen=True)
class NormNet:
    """A network whose running statistics belong to the point that is kept."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        first = nn.Linear(prod(input_shape), 6)
        return nn.Sequential(
            nn.Flatten(), first, nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, outputs)
        )


AUC = DeepAUC(Digits(limit=200, limit_test=100), model=MLP(hidden=(4,)), batch_size=4)
NORMS = replace(AUC, model=NormNet())
TRAIN = LocalSGDA(lr_x=0.3, lr_y=0.3, local_steps=2)
OPTIONS = EarlyStopping(metric="test_auc", patience=4)


def runner_of(
    world: World, problem: Any, algorithm: Any, plan: Plan, folder: Path | None = None
) -> Runner:
    site = make_site(world, 4, 1, "float64", "cpu")
    checkpoints = None if folder is None else Checkpoints(folder, world, every=1)
    given = default_communicator(algorithm), world, site, plan
    runner = Runner(problem, algorithm, *given, checkpoints=checkpoints)
    runner.prepare()
    return runner


def train(problem: Any, folder: Path | None = None, until: int | None = None) -> Any:
    """Return the result, or the rounds of a run that is interrupted after `until` rounds."""
    with connected() as world:
        runner = runner_of(world, problem, TRAIN, Plan(rounds=60), folder)
        runner.best = BestRecord(OPTIONS, "best")
        runner.stops_after = lambda rounds: rounds == until
        try:
            result = runner.run()
        except InterruptedRunError:
            return until
    rounds = runner.communicator.traffic.rounds
    return rounds, result.stopped, result.kept, result.variables


def agree(first: Any, second: Any) -> None:
    assert first[:2] == second[:2]
    assert first[2] == pytest.approx(second[2], abs=1e-12)
    for name, value in first[3].items():
        torch.testing.assert_close(second[3][name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("problem", [AUC, NORMS], ids=["dense", "batch_norm"])
def test_all_ranks_stop_in_the_same_round_with_the_same_best_model(
    ranks: Ranks, problem: Any
) -> None:
    alone = train(problem)
    assert 4 < alone[0] < 60
    assert 0 < alone[2]["round"] == alone[0] - 4
    for count in (2, 4):
        for found in ranks(count, train, problem):
            agree(alone, found)


@pytest.mark.parametrize("before", [1, 2])
def test_a_restarted_run_stops_in_the_same_round_with_the_same_best_model(
    ranks: Ranks, tmp_path: Path, before: int
) -> None:
    # The interruption is between the best record and the end: both are in the checkpoint.
    alone = train(NORMS)
    between = int(alone[0]) - 2
    assert ranks(before, train, NORMS, tmp_path / "run", between) == [between] * before
    for found in ranks(3 - before, train, NORMS, tmp_path / "run"):
        agree(alone, found)


def test_a_run_that_was_stopped_early_stays_stopped_when_it_is_started_again(
    tmp_path: Path,
) -> None:
    first = train(AUC, tmp_path)
    agree(first, train(AUC, tmp_path))


def test_the_kept_network_has_the_running_statistics_of_its_record() -> None:
    kept = train(NORMS)
    with connected() as world:
        runner = runner_of(world, NORMS, TRAIN, Plan(rounds=int(kept[2]["round"])))
        whole = runner.run()
    assert same(kept[3], whole.variables)
    assert "net.2.running_mean" in whole.variables


def test_a_checkpoint_with_a_damaged_standing_is_refused() -> None:
    content = asdict(Standing("test_auc", 0.5, 0.5, 10, 5, 1, 12))
    assert Standing.parse(content).waited == 1
    for name, value in (("waited", -1), ("step", "3"), ("value", None), ("metric", 4)):
        with pytest.raises(TypeError):
            Standing.parse({**content, name: value})
    with pytest.raises(TypeError):
        Standing.parse({**content, "other": 1})


# The command line.

COMMAND = (
    "early_stopping.metric=operator_norm",
    *("problem=quadratic_game", "algorithm=lsgd", "problem.dim=2", "problem.samples=4"),
    *("problem.batch_size=1", "clients=2", "rounds=200", "algorithm.lr=0.05", "keep=best"),
    *("early_stopping.patience=3", "evaluate_every=1", "run.name=it"),
)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedsys", *COMMAND, *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(str(ended.value.code))


def test_the_summary_says_why_the_run_stopped_and_which_record_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "runs/it"
    summary = json.loads((folder / "summary.json").read_text())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    best = min(records, key=lambda record: record["operator_norm"])
    assert summary["final"]["round"] == best["round"] + 3 < 200
    assert summary["kept"] == {name: best[name] for name in ("step", "round", "operator_norm")}
    assert summary["stopped"].startswith("early stopping: operator_norm has not improved for 3")
    assert summary["stopped"] in printed
    assert f"kept: the best record, of round {best['round']:.0f}" in printed
    kept = load_file(folder / "final.safetensors")
    # The same command finds the run finished; with more patience it goes on, to a better record.
    assert command(monkeypatch) == 0
    assert "this run is finished" in capsys.readouterr().out
    assert same(kept, load_file(folder / "final.safetensors"))
    assert command(monkeypatch, "early_stopping.patience=8") == 0
    longer = json.loads((folder / "summary.json").read_text())
    assert longer["final"]["round"] > summary["final"]["round"]
    assert longer["kept"]["operator_norm"] <= summary["kept"]["operator_norm"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("early_stopping.patience=0", "early_stopping: patience must be at least 1 record"),
        ("early_stopping.metric=auc", "early_stopping: metric must be one of drift, operator_norm"),
        ("keep=first", "keep must be last or best, got 'first'"),
        ("early_stopping.min_delta=x", "early_stopping: min_delta must be a number"),
    ],
)
def test_wrong_options_end_in_one_line_and_leave_no_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str,
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, given) == 2
    printed = capsys.readouterr().err.strip()
    assert line in printed
    assert len(printed.splitlines()) == 1
    assert not (tmp_path / "runs").exists()
