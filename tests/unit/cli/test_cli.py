"""The command line: one line for a mistake, one directory for a run, the same on every rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.data_files import write_cifar10
from support.processes import Done, children, command, commands_at_once, launched

from fedsys import run as run_in_python
from fedsys.algorithms import AdaFGDA
from fedsys.data import Imbalance
from fedsys.problems import DeepAUC

GAME = (
    "algorithm=local_sgda",
    "problem=quadratic_game",
    "problem.dim=3",
    "problem.samples=4",
    "algorithm.local_steps=5",
)


Command = Callable[..., Done]


def launch(folder: Path, ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        launched(ranks, *arguments), cwd=folder, capture_output=True, text=True, timeout=100
    )


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


SCHEDULE = "algorithm.lr={_target_: fedsys.algorithms.Decreasing, scale: 2, offset: 8, power: 0.5}"
MISTAKES = {
    ("algorithm=nonsense",): ["algorithm=nonsense is unknown", "fedavg", "local_sgda"],
    ("algorithm.lr_x=-1",): ["AdaFGDA: lr_x must be positive, got -1"],
    ("algorithm.lr_x=much",): ["lr_x must be a number or a schedule or theory, got 'much'"],
    ("algorithm.local_step=3",): [
        "no option algorithm.local_step",
        "did you mean algorithm.local_steps?",
    ],
    ("clientz=3",): ["no option clientz", "did you mean clients=3?"],
    ("clients=many",): ["many", "Integer"],
    ("clients=0",): ["clients must be at least 1, got 0"],
    ("clients=2000",): ["client 751 has no training sample", "fewer clients"],
    ("algorithm=fedavg", "problem=auc"): [
        "fedavg needs a minimisation problem",
        "problem=auc is",
        "try problem=binary_classification or problem=classification",
    ],
    ("algorithm=lippax", "problem=composite_saddle"): [
        "lippax does not support the composite term or constraint of problem=composite_saddle",
        "(L1(weight=0.1) on x and y)",
        "algorithm=lde or algorithm=lesgd",
        "algorithm=proxskip",
    ],
    ("steps=5", "rounds=5"): ["give steps or rounds"],
    ("rounds=0",): ["rounds must be at least 1, got 0"],
    ("dtype=float16",): ["dtype must be one of float32, float64, got 'float16'"],
    ("device=cuda:77",): ["device=cuda:77 is not there"],
    ("communicator.backend=mpi",): ["backend must be one of auto, gloo, nccl, got 'mpi'"],
    ("checkpoint.keep=0",): ["checkpoint: keep must be at least 1, got 0"],
    ("participation=0",): ["communicator: participation must be in (0, 1], got 0"],
    ("on_nonfinite=ignore",): ["communicator: on_nonfinite must be stop or drop, got 'ignore'"],
    ("resume=maybe",): ["resume must be one of auto, true, false"],
    ("run.dir=/proc/nowhere",): ["cannot write to the run directory /proc/nowhere"],
    ("problem.imbalance.positive_ratio=0.9",): ["positive_ratio=0.9 asks for"],
    # A type that is not the declared one.
    ("algorithm=proxskip", SCHEDULE): [
        "ProxSkip: lr must be a number or theory (",
        "), got Decreasing(",
    ],
    ("algorithm.lr_x=true",): ["lr_x must be a number or a schedule or theory, got True"],
    ("algorithm.local_steps=inf",): ["local_steps must be a whole number, got inf"],
    ("seed=99999999999999999999999",): ["seed must be a whole number below 2^63"],
    ("problem.imbalance.negative=0.5",): ["negative must be a list of whole numbers or null"],
    ("problem.batch_size=1e30",): ["batch_size must be a whole number or null, got 1e+30"],
    ("dataset=mnist", "dataset.download=banana"): ["download must be true or false, got 'banana'"],
    ("dataset.limit=inf",): ["limit must be a whole number or null, got inf"],
    ("participation=true",): ["participation must be a number, got True"],
    ("device=meta",): ["device must be auto, cpu, cuda or cuda:N, got 'meta'"],
    ("device=cpu:9",): ["device must be auto, cpu, cuda or cuda:N, got 'cpu:9'"],
    # Groups that are no choice.
    ("~algorithm",): ["algorithm must be one of", "adafgda", "got None"],
    ("communicator=null",): ["communicator must be one of adaptive_matrix, all_reduce, skip_coin"],
    ("problem=[1,2]",): ["problem must be one of auc", "got [1,2]"],
    # Known only late, and told before anything is written.
    ("logger=wandb",): ["logger=wandb needs wandb"],
    ("communicator=all_reduce",): ["computes on the server", "communicator=adaptive_matrix"],
    ("algorithm=proxskip", "communicator=all_reduce"): ["shared coins", "communicator=skip_coin"],
    ("hydra.run.dir=/proc/nowhere",): ["hydra.run.dir is not used; run.dir=FOLDER"],
    # Names of earlier versions.
    ("problem=fair_german", "problem.dataset.group_in_features=true"): [
        "problem.dataset.group_in_features is now problem.dataset.preparation=authors|plain|"
    ],
    ("dataset=german", "dataset.split_seed=3"): ["dataset.split_seed is now dataset.seed"],
    # Spelling.
    ("algorithm=fedavgg",): ["algorithm=fedavgg is unknown; did you mean fedavg"],
    ("rounds", "5"): ["write settings as rounds=5"],
    ("--rounds", "5"): ["--rounds is not an option of fedsys; write settings as rounds=5"],
    ("lr=0.1",): ["there is no option lr; did you mean algorithm.lr"],
    ("local_steps=5",): ["did you mean algorithm.local_steps=5?"],
    # Added without anything that reads them.
    ("++lr=1",): ["++lr=1 adds an option that nothing reads"],
    ("+run.foo=1",): ["+run.foo=1 adds an option that nothing reads"],
    ("+password=hush",): ["+password=<not kept> adds an option that nothing reads"],
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=lambda a: " ".join(a))
def test_an_invalid_configuration_gives_one_line_and_exit_code_2_and_writes_nothing(
    arguments: tuple[str, ...], fedsys: Command, tmp_path: Path
) -> None:
    done = fedsys(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for part in MISTAKES[arguments]:
        assert part in done.stderr
    assert not done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        (("dataset=mnist",), "dataset=mnist has no effect on problem=quadratic_game: it has no"),
        (("model.hidden=[4]",), "model.hidden=[4] has no effect on problem=quadratic_game"),
        (("++seed=1",), ""),
    ],
)
def test_a_setting_that_the_run_does_not_use_gives_a_warning(
    arguments: tuple[str, ...], warning: str, fedsys: Command
) -> None:
    done = fedsys(*GAME, "clients=2", "rounds=1", *arguments)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == bool(warning)
    assert f"warning: {warning}" in f"warning: {done.stderr.removeprefix('fedsys: warning: ')}"


def test_an_added_setting_that_something_reads_is_accepted(fedsys: Command) -> None:
    done = fedsys(*GAME, "clients=2", "rounds=1", "algorithm.lr_x=${step}", "+step=0.25")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_objective_creates_no_run_directory(fedsys: Command, tmp_path: Path) -> None:
    arguments = (*GAME, "clients=2", "rounds=1", "run.name=mine")
    done = fedsys(*arguments, "objective=nope")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "objective must be one of " in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert fedsys(*arguments).returncode == 0


def test_a_sweep_whose_jobs_are_all_refused_leaves_nothing(fedsys: Command, tmp_path: Path) -> None:
    done = fedsys("--multirun", *GAME, "seed=-1,-2")
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algorithm", ["fedavg", "proxskip", "fedbio", "lippax", "fgda_theory"])
def test_an_algorithm_alone_runs_on_a_problem_of_its_kind(algorithm: str, fedsys: Command) -> None:
    done = fedsys(f"algorithm={algorithm}", "rounds=1", "clients=2", "device=cpu")
    assert done.returncode == 0, done.stderr


class Broken(AdaFGDA):
    """Has a defect that shows in its first step, or before."""

    def step(self, *_: object) -> NoReturn:  # type: ignore[override]
        raise KeyError("a defect")


class BrokenEarly(AdaFGDA):
    """Has a defect that shows before the run has a directory."""

    def planned(self, steps: int) -> NoReturn:
        raise KeyError("a defect")


def test_an_unexpected_exception_is_one_line_and_its_traceback_is_in_the_run_directory(
    fedsys: Command, tmp_path: Path
) -> None:
    done = fedsys(f"algorithm._target_={__name__}.Broken", "clients=2", "run.name=one")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert "unexpected KeyError: 'a defect'; the traceback is in" in line
    kept = tmp_path / "runs/one/traceback-0.txt"
    assert str(kept) in line
    assert 'raise KeyError("a defect")' in kept.read_text()


def test_without_a_run_directory_the_traceback_is_printed_on_request(
    fedsys: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (f"algorithm._target_={__name__}.BrokenEarly", "clients=2")
    done = fedsys(*arguments)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert "unexpected KeyError: 'a defect'; FEDSYS_DEBUG=1 prints the traceback" in line
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("FEDSYS_DEBUG", "1")
    assert "Traceback (most recent call last)" in fedsys(*arguments).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("algorithm=nonsense",), "algorithm=nonsense is unknown"),
        (("clients=2",), "clients=2 is fewer than the 3 ranks"),
    ],
)
def test_an_invalid_configuration_on_three_ranks_is_reported_once(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = command(tmp_path, 3, *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert message in done.stderr


def test_a_loss_that_is_not_finite_ends_with_1_and_names_step_and_client(tmp_path: Path) -> None:
    overrides = (*GAME, "algorithm.lr_x=1e30", "clients=4", "rounds=10")
    done = launch(tmp_path, 2, *overrides)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "client" in line
    assert "not finite after iteration" in line
    assert (only_run(tmp_path) / "metrics.jsonl").exists()


def test_a_run_leaves_one_directory_with_everything(tmp_path: Path) -> None:
    overrides = (*GAME, "rounds=6", "evaluate_every=2", "logger=tensorboard", "dtype=float64")
    done = launch(tmp_path, 2, *overrides)
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    expected = {
        "config.yaml", "metrics.jsonl", "summary.json", "final.safetensors", "checkpoints",
        "curves.png", "tensorboard",
    }  # fmt: skip
    assert expected <= {path.name for path in run.iterdir()}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [0, 2, 4, 6]
    keys = {"step", "round", "bytes_up", "bytes_down", "seconds", "relative_error", "drift"}
    assert all(keys <= set(record) for record in records)
    assert records[-1]["bytes_up"] == 6 * 6 * 8
    summary = json.loads((run / "summary.json").read_text())
    assert summary["final"] == records[-1]
    assert summary["clients"] == summary["ranks"] == len(summary["seconds_waited_by_rank"]) == 2
    assert set(load_file(run / "final.safetensors")) == {"x", "y"}
    assert f"picture: {run}" in done.stdout
    assert done.stdout.count("relative_error") == 3  # first line, last line, table: rank 0 only


def test_a_named_run_resumes_and_ends_with_the_same_result(fedsys: Command, tmp_path: Path) -> None:
    overrides = (*GAME, "clients=3", "dtype=float64", "problem.batch_size=1")
    assert fedsys(*overrides, "rounds=8", "run.name=whole").returncode == 0
    assert fedsys(*overrides, "rounds=3", "run.name=parts").returncode == 0
    done = fedsys(*overrides, "rounds=8", "run.name=parts")
    assert done.returncode == 0, done.stderr
    assert "continued from step 15" in done.stdout
    whole, parts = (load_file(tmp_path / f"runs/{n}/final.safetensors") for n in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    rounds = [
        [json.loads(line)["round"] for line in (tmp_path / f"runs/{n}/metrics.jsonl").open()]
        for n in ("whole", "parts")
    ]
    assert rounds == [[0, 5, 8], [0, 3, 5, 8]]


def test_another_run_in_the_same_directory_is_refused(fedsys: Command, tmp_path: Path) -> None:
    overrides = (*GAME, "clients=2", "run.name=mine")
    assert fedsys(*overrides, "rounds=2").returncode == 0
    before = (tmp_path / "runs/mine/metrics.jsonl").read_bytes()
    for changed in ("seed=1", "resume=false"):
        done = fedsys(*overrides, "rounds=2", changed)
        assert done.returncode == 2
        assert "run.name" in done.stderr
    assert (tmp_path / "runs/mine/metrics.jsonl").read_bytes() == before


def test_steps_on_the_command_line_replace_the_rounds_of_the_file(
    fedsys: Command, tmp_path: Path
) -> None:
    assert fedsys(*GAME, "clients=2", "steps=7").returncode == 0
    final = json.loads((only_run(tmp_path) / "summary.json").read_text())["final"]
    assert (final["step"], final["round"]) == (7, 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_multirun_makes_one_directory_per_job_for_all_ranks(ranks: int, tmp_path: Path) -> None:
    jobs = ("--multirun", "seed=1,2", *GAME, "clients=2", "rounds=2")
    done = command(tmp_path, ranks, *jobs)
    assert done.returncode == 0, done.stderr
    sweep = only_run(tmp_path)
    assert sorted(path.name for path in sweep.iterdir()) == ["0", "1", "multirun.yaml"]
    finals = [json.loads((sweep / job / "summary.json").read_text())["final"] for job in "01"]
    assert finals[0]["operator_norm"] != finals[1]["operator_norm"]


def test_an_experiment_with_a_sweep_runs_all_its_methods(fedsys: Command, tmp_path: Path) -> None:
    small = ("problem.dim=2", "problem.samples=3", "clients=3", "rounds=2")
    done = fedsys("experiment=proxskip/fig1_deterministic", *small)
    assert done.returncode == 0, done.stderr
    jobs = sorted(path.parent for path in only_run(tmp_path).glob("*/summary.json"))
    assert [job.name for job in jobs] == ["0", "1", "2", "3"]
    for job in jobs:
        assert json.loads((job / "summary.json").read_text())["final"]["round"] == 2


def test_one_method_of_an_experiment_with_a_sweep_can_be_run_alone(
    fedsys: Command, tmp_path: Path
) -> None:
    alone = ("hydra.mode=RUN", "algorithm=lippax", "clients=2", "rounds=2")
    done = fedsys("experiment=vi/low_variance", *alone)
    assert done.returncode == 0, done.stderr
    final = json.loads((only_run(tmp_path) / "summary.json").read_text())["final"]
    assert final["round"] == 2
    assert final["average_gap"] > 0


def test_two_jobs_of_the_same_second_do_not_collide(tmp_path: Path) -> None:
    done = commands_at_once(tmp_path, 2, *GAME, "clients=2", "rounds=1")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_killed_rank_ends_the_run_with_one_line(tmp_path: Path) -> None:
    endless = launched(2, *GAME, "rounds=10000000", "evaluate_every=1000000")
    job = subprocess.Popen(
        endless, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    while "round 0" not in job.stdout.readline():
        assert job.poll() is None
    os.kill(children(job.pid)[1], signal.SIGKILL)
    killed = time.monotonic()
    _, errors = job.communicate(timeout=60)
    assert time.monotonic() - killed < 20
    assert job.returncode == 1
    assert "rank 1" in errors
    assert "Traceback" not in errors


def test_help_lists_the_groups(fedsys: Command) -> None:
    done = fedsys("--help")
    assert done.returncode == 0
    assert "federated optimisation" in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("algorithm: "))
    assert {"fedavg", "local_sgda", "proxskip"} <= set(line.split(": ")[1].split(", "))


def test_a_run_saves_its_partition_and_reports_a_missing_part_of_the_data(
    fedsys: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSYS_CACHE", str(tmp_path / "cache"))
    write_cifar10(tmp_path / "data")
    overrides = ("dataset=cifar10", "dataset.root=data", "partition=disjoint", "model=logistic")
    done = fedsys(*overrides, "clients=5", "rounds=1", "run.name=one")
    assert done.returncode == 0, done.stderr
    assert "\ncifar10: 1 of 5 training batches are there\n" in done.stdout
    run = tmp_path / "runs" / "one"
    with np.load(run / "partition.npz") as kept:
        client, classes, rows = kept["client"], kept["classes"], kept["rows"]
    # 200 negatives, and 22 positives to make a tenth.
    assert len(client) == len(classes) == len(rows) == 222
    assert rows.max() < 400
    line = "imbalance: trains on 22 of 200 positive and 200 of 200 negative samples"
    assert f"\n{line} (positive_ratio=0.1)\n" in done.stdout
    owners = [set(client[classes == number].tolist()) for number in range(10)]
    assert all(len(clients) == 1 for clients in owners)
    assert set.union(*owners) == set(range(5))
    assert (run / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_a_finished_run_of_two_ranks_prints_the_same_summary_when_it_is_started_again(
    tmp_path: Path,
) -> None:
    """Only the first rank reads the records of before."""
    arguments = ("problem=quadratic_game", "problem.dim=2", "problem.samples=2", "clients=2")
    arguments += ("rounds=2", "run.name=first")
    first, again = (command(tmp_path, 2, *arguments) for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 0), again.stderr
    assert "relative_error" in again.stdout


def test_adafgda_ends_in_python_where_it_ends_on_the_command_line(
    fedsys: Command, tmp_path: Path
) -> None:

    length = {"clients": 2, "rounds": 2, "evaluate_every": 2}
    done = fedsys("algorithm=adafgda", *(f"{k}={v}" for k, v in length.items()), "run.name=one")
    assert done.returncode == 0, done.stderr
    final = json.loads((tmp_path / "runs/one/summary.json").read_text())["final"]
    thinned = Imbalance(positive_ratio=0.1)
    result = run_in_python(DeepAUC(imbalance=thinned), AdaFGDA(), **length)
    assert result.records[-1]["test_auc"] == final["test_auc"]
    assert result.records[-1]["train_loss"] == final["train_loss"]
