"""Signals that ask a run to stop: all ranks stop after the same round, and the run can go on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.launched_runs import Run, marked
from support.processes import Done, Ranks, children, command, connected, launched

from fedsys.distributed.stop_signal import StopSignal
from fedsys.distributed.world import World
from fedsys.training.run_directory import RunDirectory

GAME = (
    "algorithm=local_sgda",
    "problem=quadratic_game",
    "problem.dim=3",
    "problem.samples=4",
    "algorithm.local_steps=5",
    "clients=3",
)
ROUNDS = ("rounds=40", "evaluate_every=10")


def stop(victim: int, number: int) -> tuple[int, int, str]:
    """Go round until all stop: the round of the signal, the one after which we stop, and why."""
    with connected() as world:
        interruption = StopSignal(world)
        interruption.listen()
        interruption.listen_to_others()
        for rounds in range(1, 100_000):
            if rounds == 50 and world.rank == victim:
                os.kill(os.getpid(), number)
            world.transport.all_reduce(torch.ones(1))
            if interruption.is_due(rounds):
                interruption.let_go()
                return 50, rounds, interruption.cause
    raise AssertionError("nobody stopped")


@pytest.mark.parametrize(("victim", "name"), [(0, "SIGTERM"), (2, "SIGUSR1")])
def test_a_signal_to_any_rank_stops_all_of_them_after_the_same_round(
    victim: int, name: str
) -> None:
    team = Ranks()  # its own: who was asked to stop has left a note
    answers = team(3, stop, victim, getattr(signal, name))
    team.close()
    (sent, rounds, cause), *others = answers
    assert others == 2 * [(sent, rounds, cause)]
    assert sent < rounds
    assert cause == f"{name} to rank {victim}"


def signalled_at(monkeypatch: pytest.MonkeyPatch, round_: int) -> None:
    """Let the processes that are forked from now on get a signal when they write that record."""
    record = RunDirectory.record

    def then_signal(self: RunDirectory, values: dict[str, float]) -> None:
        record(self, values)
        if values["round"] == round_:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(RunDirectory, "record", then_signal)


Command = Callable[..., Done]


def test_a_run_that_was_stopped_says_so_in_a_line_and_the_same_command_ends_it_bit_for_bit(
    fedsys: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fedsys(*GAME, *ROUNDS, "run.name=whole").returncode == 0
    with monkeypatch.context() as patches:
        signalled_at(patches, 10)
        stopped = fedsys(*GAME, *ROUNDS, "run.name=cut", "checkpoint.every=0")
    assert stopped.returncode == 75
    assert stopped.stderr == (
        "fedsys: SIGTERM: stopped after round 10, step 50; the same command resumes the run\n"
    )
    again = fedsys(*GAME, *ROUNDS, "run.name=cut")
    assert again.returncode == 0, again.stderr
    assert "continued from step 50" in again.stdout
    whole, cut = ((tmp_path / "runs" / name) for name in ("whole", "cut"))
    assert (whole / "final.safetensors").read_bytes() == (cut / "final.safetensors").read_bytes()
    lengths = [len((run / "metrics.jsonl").read_text().splitlines()) for run in (whole, cut)]
    assert lengths == [5, 5]


def test_a_run_without_a_name_says_where_it_can_be_continued(
    fedsys: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled_at(monkeypatch, 10)
    stopped = fedsys(*GAME, *ROUNDS)
    (run,) = (tmp_path / "runs").iterdir()
    assert f"run.dir={run} resumes the run" in stopped.stderr


def test_a_stopped_sweep_starts_no_further_run(
    fedsys: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled_at(monkeypatch, 10)
    assert fedsys("--multirun", *GAME, *ROUNDS, "seed=0,1").returncode == 75
    assert len(list((tmp_path / "runs").glob("*/*/config.yaml"))) == 1


def test_the_launcher_restarts_killed_ranks_but_not_stopped_ones(
    tmp_path: Path,
) -> None:
    endless = launched(2, "--max-restarts=3", "--", *GAME, "rounds=10000000", "run.name=endless")
    job = subprocess.Popen(
        endless, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    while "round 0" not in job.stdout.readline():
        assert job.poll() is None
    while not list(tmp_path.glob("runs/endless/checkpoints/step-*")):
        assert job.poll() is None
        time.sleep(0.05)
    os.kill(children(job.pid)[1], signal.SIGKILL)
    while "continued from step" not in job.stdout.readline():
        assert job.poll() is None
    ranks = children(job.pid)
    job.send_signal(signal.SIGUSR1)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 75, errors
    assert len(errors.splitlines()) == 1
    assert errors.startswith("fedsys: SIGUSR1 to rank ")
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    done = command(tmp_path, 2, *GAME, "rounds=1", "run.name=endless")
    assert "continued from step" in done.stdout


def test_ctrl_c_at_the_launcher_keeps_a_checkpoint_and_says_so_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "endless"
    folder.parent.mkdir()
    run = Run(2, (*GAME, "rounds=10000000", "checkpoint.every=1000000"), folder, "ctrlc", 3)
    while not (folder / "metrics.jsonl").is_file():
        assert run.code is None, run.said()
        time.sleep(0.05)
    os.kill(run.pid, signal.SIGINT)
    assert run.wait() == 130, run.said()
    (line,) = run.said().splitlines()
    assert line.startswith("fedsys: SIGINT (Ctrl-C) to rank ")
    assert line.endswith("resumes the run")
    assert not list(marked("ctrlc"))
    if "before the first round" not in line:
        assert list(folder.glob("checkpoints/step-*"))


def test_signals_that_a_launcher_ignored_are_handled_but_those_that_nohup_ignores_are_not() -> None:
    numbers = (signal.SIGUSR1, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    stop = StopSignal(World())
    try:
        stop.listen()
        found = {number: signal.getsignal(number) for number in numbers}
        stop.let_go()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert callable(found[signal.SIGUSR1])
    assert found[signal.SIGHUP] is signal.SIG_IGN
